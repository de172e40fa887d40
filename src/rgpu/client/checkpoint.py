"""The file of a checkpoint: what sessions consisted of at one point of their streams, and the bytes of their arrays.

Magic, version, length and SHA-256 of a header (plain values, by the wire's codec), the header, then for each array
its bytes and their SHA-256. Read as strictly as what comes from a network: nothing in it names code, and a file that
is damaged, cut short or no checkpoint is refused before anything is made of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rgpu.client import state
from rgpu.errors import CheckpointError, ProtocolError
from rgpu.wire import codec, values

MAGIC = b"rgpu\x89ck\n"
VERSION = 1
_FIXED = struct.Struct("<8sHQ32s")
HEADER = 1 << 30  # bytes at most
_PAGE = 1024  # entries packed together
_PIECE = 16 << 20  # bytes hashed and written together
_decode = values.Decoder(lambda handle: None)


def savable(entries: list[tuple]) -> list[tuple]:
    """The arrays, views and random states among a session's entries. What else owns the memory of a view, as a module
    does that of its globals, is there as an array of bytes; a view of what nobody can read is not."""
    roots = {entry[2] for entry in entries if entry[0] == "view"}
    found = [entry for entry in entries if entry[0] == "array" or _random(entry)]
    others = [entry for entry in entries if entry[0] == "made" and entry[1] in roots and entry[-1]]
    found += [("array", entry[1], np.dtype(np.uint8), (entry[-1],), None, entry[-1]) for entry in others]
    there = {entry[1] for entry in found if entry[0] == "array"}
    return [*found, *[entry for entry in entries if entry[0] == "view" and entry[2] in there]]


def _random(entry: tuple) -> bool:
    return entry[0] == "made" and entry[2].startswith("random.")


def save(path: Any, sessions: Iterable[tuple[int, Any, list[tuple]]], facts: dict) -> None:
    """Write (ordinal, line, entries) of each session, and ``facts`` about them in plain values. Whole or not at all:
    a file of that name is replaced at the end."""
    sessions = list(sessions)
    head = {
        "facts": facts,
        "devices": [[ordinal, _pages(entries)] for ordinal, _, entries in sessions],
    }
    path = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            body = codec.pack(head)
            file.write(_FIXED.pack(MAGIC, VERSION, len(body), hashlib.sha256(body).digest()))
            file.write(body)
            for _, line, entries in sessions:
                for array, nbytes in state.contents(entries):
                    _write(file, line.fetch(array, nbytes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _pages(entries: list[tuple]) -> list:
    packed = [values.encode(entry, lambda _: None) for entry in entries]
    return [packed[start : start + _PAGE] for start in range(0, len(packed), _PAGE)]


def _write(file: BinaryIO, data: np.ndarray) -> None:
    digest = hashlib.sha256()
    for start in range(0, data.nbytes, _PIECE):
        piece = memoryview(data)[start : start + _PIECE]
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


class Reader:
    """An open checkpoint: ``devices`` (ordinal, entries), ``facts``, and once through the ``contents``."""

    def __init__(self, path: Any) -> None:
        self.path = os.fspath(path)
        self._file = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        try:
            head = self._head()
            self.facts: dict = head["facts"]
            self.devices = [
                (ordinal, [_decode(e) for page in pages for e in page]) for ordinal, pages in head["devices"]
            ]
            self._check_size()
        except (ProtocolError, KeyError, TypeError, ValueError, IndexError) as error:
            self._file.close()
            raise self.refused(str(error)) from None
        except BaseException:
            self._file.close()
            raise

    def _head(self) -> dict:
        fixed = self._file.read(_FIXED.size)
        if len(fixed) < _FIXED.size or fixed[: len(MAGIC)] != MAGIC:
            raise CheckpointError(f"{self.path} is no checkpoint of rgpu")
        _, version, length, digest = _FIXED.unpack(fixed)
        if version != VERSION:
            raise CheckpointError(
                f"{self.path} is a checkpoint of version {version}; this rgpu reads version {VERSION}"
            )
        if length > min(HEADER, os.fstat(self._file.fileno()).st_size):
            raise ValueError("its header is cut short")
        body = self._file.read(length)
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("its header does not fit its checksum")
        return codec.unpack(body, HEADER)

    def _check_size(self) -> None:
        """A file that was cut short is refused before anything is uploaded."""
        contents = [nbytes for _, entries in self.devices for _, nbytes in state.contents(entries)]
        end = self._file.tell() + sum(contents) + 32 * len(contents)
        size = os.fstat(self._file.fileno()).st_size
        if size != end:
            raise ValueError(f"it has {size} bytes, not {end}")

    def contents(self, ordinal: int) -> Iterator[tuple[int, np.ndarray]]:
        """Handle and bytes of each array of a device; devices are read in their order."""
        entries = next(entries for number, entries in self.devices if number == ordinal)
        for handle, nbytes in state.contents(entries):
            data = np.empty(nbytes, np.uint8)
            read = self._file.readinto(memoryview(data))  # type: ignore[attr-defined]
            if read != nbytes or hashlib.sha256(data).digest() != self._file.read(32):
                raise self.refused("the content of an array does not fit its checksum")
            yield handle, data

    def refused(self, why: str) -> CheckpointError:
        """What to raise when something in it cannot be."""
        return CheckpointError(f"{self.path} is damaged: {why}")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()
