"""Keys on stream links: who is at the other end, and AES-256-GCM over what crosses a network.

The two ends share a secret that came through a CURVE channel. Each connection proves it both ways and derives keys of
its own from it and from two fresh nonces, so nothing is ever sealed twice under one key and nonce. Needs a libcrypto
(OpenSSL 1.1 or newer) that is there already; where there is none, CURVE carries the data. Knows pipes, no addresses;
a byte that did not open reaches nobody.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
import os
import secrets
import struct
from dataclasses import dataclass, field
from typing import Any

from rgpu._native import transports

SECRET = NONCE = PROOF = 32  # bytes
RECORD = 64 << 10  # bytes of plain text in one; as in csrc/rgpu_seal.c
RECORDS = 1 << 32  # under one key; then the connection ends, and the next one has others
CLIENT, WORKER = b"client", b"worker"  # the two sides

_HEAD = struct.Struct("<I")
_TAG = 16
_KEY, _IV = 32, 12
_GET_TAG, _SET_TAG = 0x10, 0x11  # evp.h
_UNSEALED = ("shm",)  # memory of one host that only the two ends have: the proof is all it needs


@dataclass(frozen=True)
class Seal:
    """What the ends of a link share. ``clear``: they prove it, and then send everything as it is."""

    secret: bytes = field(repr=False)
    clear: bool = False


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET)


class Meeting:
    """What the two ends of one connection agree on: ``hello`` is all that the client said, ``nonce`` the worker's."""

    def __init__(self, seal: Seal, kind: str, hello: bytes, nonce: bytes) -> None:
        self._open = seal.clear or kind in _UNSEALED
        about = f"rgpu {kind} {'clear' if seal.clear else 'sealed'}\0".encode()
        salt = hashlib.sha256(about + _HEAD.pack(len(hello)) + hello + nonce).digest()
        self._key = hmac.digest(salt, seal.secret, "sha256")  # HKDF (RFC 5869), extracted

    def _expanded(self, purpose: bytes, size: int) -> bytes:
        block = made = b""
        while len(made) < size:
            block = hmac.digest(self._key, block + purpose + bytes([len(made) // 32 + 1]), "sha256")
            made += block
        return made[:size]

    def proof(self, side: bytes) -> bytes:
        """That a side has the secret."""
        return self._expanded(b"proof of the " + side, PROOF)

    def proves(self, side: bytes, said: bytes) -> bool:
        return hmac.compare_digest(self.proof(side), said)

    def sealed(self, pipe: Any, side: bytes) -> Any:
        """The pipe, as this side is to use it from now on."""
        if self._open:
            return pipe
        other = WORKER if side == CLIENT else CLIENT
        mine, theirs = (self._expanded(b"key of the " + one, _KEY + _IV) for one in (side, other))
        core = transports()
        if core is not None and getattr(pipe, "native", (0, 1))[1] == 0:  # a plain socket
            return SealedSocket(pipe, core.seal(pipe.fileno(), mine, theirs, RECORDS))
        return SealedPipe(pipe, mine, theirs)


# ---- the library ---------------------------------------------------------------------------------


def _names() -> list[str]:
    """Where a libcrypto may be: where the operator says, else what Python's own hashlib has loaded, mostly."""
    named = os.environ.get("RGPU_CRYPTO_LIB")
    return [named] if named else ["libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so", "libcrypto.3.dylib", ""]


@functools.cache
def _library() -> Any:
    """The first that has what is needed, or None."""
    for name in _names():
        try:
            found = ctypes.CDLL(name or None)
            found.EVP_CIPHER_CTX_new.restype = found.EVP_aes_256_gcm.restype = ctypes.c_void_p
        except (OSError, AttributeError):
            continue
        core = transports()
        if core is None or core.load_seal(name):
            return found
    return None


def missing() -> str:
    """Why this process cannot seal; empty: it can."""
    if _library() is None:
        return "sealed links need OpenSSL's libcrypto (RGPU_CRYPTO_LIB, or libcrypto.so.3)"
    return ""


# ---- records -------------------------------------------------------------------------------------


class _Sealed:
    """What both have."""

    write_one: Any

    def write(self, buffers: Any) -> int:
        """Small ones share a record."""
        if sum(map(len, buffers)) <= RECORD:
            return self.write_one(b"".join(buffers))
        total = 0
        for data in buffers:
            written = self.write_one(data)
            total += written
            if written < len(data):
                break
        return total


class SealedSocket(_Sealed):
    """A socket's pipe through the C core."""

    tells_room = True
    ended = False  # its reads say so

    def __init__(self, pipe: Any, stream: Any) -> None:
        self._pipe, self._stream = pipe, stream
        self.native = pipe.fileno(), stream.pointer
        self.sock = pipe.sock
        self.fileno, self.awake, self.close = pipe.fileno, pipe.awake, pipe.close
        self.read_into, self.write_one = stream.read, stream.write

    def busy(self) -> bool:
        return False

    def before_sleep(self, writing: bool) -> bool:
        return self._stream.doze(writing)


class SealedPipe(_Sealed):
    """Any pipe. The twin of csrc/rgpu_seal.c: the same records."""

    def __init__(self, pipe: Any, out_key: bytes, in_key: bytes, records: int = RECORDS) -> None:
        self._pipe = pipe
        self._out, self._in = _Cipher(out_key, records, True), _Cipher(in_key, records, False)
        self._leaving = memoryview(b"")  # what has not left of a record
        self._stands_for = self._credit = 0  # its plain bytes; those that have left, and nobody was told
        self._taken = bytearray()
        self._plain = memoryview(b"")
        self._over = False
        self.tells_room = pipe.tells_room
        self.fileno, self.awake, self.busy, self.close = pipe.fileno, pipe.awake, pipe.busy, pipe.close

    def write_one(self, data: Any) -> int:
        """A record counts as given when all of it has left: until then the caller offers its bytes again."""
        total, view = 0, memoryview(data).cast("B")
        while True:
            known = min(self._credit, len(view) - total)
            self._credit -= known
            total += known
            if total == len(view):
                return total
            if not self._stands_for:
                self._stands_for = min(RECORD, len(view) - total)
                self._leaving = memoryview(self._out.seal(view[total : total + self._stands_for]))
            while len(self._leaving):
                left = self._pipe.write_one(self._leaving)
                if not left:
                    return total
                self._leaving = self._leaving[left:]
            self._credit, self._stands_for = self._stands_for, 0

    def read_into(self, place: memoryview) -> int:
        done = 0
        while done < len(place):
            try:
                if not len(self._plain) and not self._open():
                    break
            except ConnectionError:
                if done:
                    break  # the next call says it again
                raise
            size = min(len(place) - done, len(self._plain))
            place[done : done + size] = self._plain[:size]
            self._plain = self._plain[size:]
            done += size
        return done

    def _open(self) -> bool:
        """Whether there is another record. ConnectionError: what came is none, and nothing after it counts."""
        if self._over:
            raise ConnectionError("the peer broke the rules of sealed links")
        while not self._whole():
            more = bytearray(RECORD)
            got = self._pipe.read_into(memoryview(more))
            if not got:
                return False
            self._taken += more[:got]
        (size,) = _HEAD.unpack_from(self._taken)
        end = _HEAD.size + size + _TAG
        record, self._taken = bytes(self._taken[:end]), self._taken[end:]
        self._over = True
        self._plain = memoryview(self._in.open(record))
        self._over = False
        return True

    def _whole(self) -> bool:
        if len(self._taken) < _HEAD.size:
            return False
        (size,) = _HEAD.unpack_from(self._taken)
        if not 0 < size <= RECORD:
            raise ConnectionError("the peer broke the rules of sealed links")
        return len(self._taken) >= _HEAD.size + size + _TAG

    def before_sleep(self, writing: bool) -> bool:
        return not len(self._plain) and not self._whole() and self._pipe.before_sleep(writing)


class _Cipher:
    """One direction, by libcrypto."""

    def __init__(self, key: bytes, records: int, sealing: bool) -> None:
        self._lib = lib = _library()
        if lib is None:
            raise ConnectionError(missing())
        self._init, self._update, self._final = (
            (lib.EVP_EncryptInit_ex, lib.EVP_EncryptUpdate, lib.EVP_EncryptFinal_ex)
            if sealing
            else (lib.EVP_DecryptInit_ex, lib.EVP_DecryptUpdate, lib.EVP_DecryptFinal_ex)
        )
        self._ctx = ctypes.c_void_p(lib.EVP_CIPHER_CTX_new())
        self._iv, self._count, self._limit = int.from_bytes(key[_KEY:], "big"), 0, records
        self._moved = ctypes.c_int()
        self._good(self._init(self._ctx, ctypes.c_void_p(lib.EVP_aes_256_gcm()), None, key[:_KEY], None))

    def __del__(self) -> None:
        if (ctx := getattr(self, "_ctx", None)) is not None:
            self._lib.EVP_CIPHER_CTX_free(ctx)

    def _good(self, result: int) -> None:
        if result != 1:
            raise ConnectionError("the peer broke the rules of sealed links")

    def _begin(self, head: bytes) -> None:
        self._good(self._count < self._limit)
        nonce = (self._iv ^ self._count).to_bytes(_IV, "big")
        self._count += 1
        self._good(self._init(self._ctx, None, None, None, nonce))
        self._pass(None, head, len(head))

    def _pass(self, into: Any, data: Any, size: int) -> None:
        self._good(self._update(self._ctx, into, ctypes.byref(self._moved), data, size))

    def seal(self, data: memoryview) -> bytes:
        """The next record."""
        head = _HEAD.pack(len(data))
        self._begin(head)
        into, tag = ctypes.create_string_buffer(len(data)), ctypes.create_string_buffer(_TAG)
        self._pass(into, bytes(data), len(data))
        self._good(self._final(self._ctx, tag, ctypes.byref(self._moved)))
        self._good(self._lib.EVP_CIPHER_CTX_ctrl(self._ctx, _GET_TAG, _TAG, tag))
        return head + into.raw + tag.raw

    def open(self, record: bytes) -> bytes:
        """What is in the next record; ConnectionError: it is none, or not the next."""
        head, sealed, tag = record[: _HEAD.size], record[_HEAD.size : -_TAG], record[-_TAG:]
        self._begin(head)
        into, rest = ctypes.create_string_buffer(len(sealed)), ctypes.create_string_buffer(_TAG)
        self._pass(into, sealed, len(sealed))
        self._good(self._lib.EVP_CIPHER_CTX_ctrl(self._ctx, _SET_TAG, _TAG, tag))
        self._good(self._final(self._ctx, rest, ctypes.byref(self._moved)))
        return into.raw
