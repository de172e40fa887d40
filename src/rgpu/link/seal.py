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
from rgpu.link.records import BROKEN, RecordPipe, RecordSocket, is_socket

SECRET = NONCE = PROOF = 32  # bytes
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
        if core is not None and is_socket(pipe):
            return RecordSocket(pipe, core.seal(pipe.fileno(), mine, theirs, RECORDS))
        return sealed_pipe(pipe, mine, theirs)


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


# ---- records --------------------------------------------------------------------------------------


def sealed_pipe(pipe: Any, out_key: bytes, in_key: bytes, records: int = RECORDS) -> RecordPipe:
    """Any pipe. The twin of csrc/rgpu_seal.c: the same records."""
    return RecordPipe(pipe, _Cipher(out_key, records, True), _Cipher(in_key, records, False))


class _Cipher:
    """One direction, by libcrypto. A guard of records."""

    head, tail = 4, 16

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
            raise ConnectionError(BROKEN)

    def _begin(self, head: bytes) -> None:
        self._good(self._count < self._limit)
        nonce = (self._iv ^ self._count).to_bytes(_IV, "big")
        self._count += 1
        self._good(self._init(self._ctx, None, None, None, nonce))
        self._pass(None, head, len(head))

    def _pass(self, into: Any, data: Any, size: int) -> None:
        self._good(self._update(self._ctx, into, ctypes.byref(self._moved), data, size))

    def length(self, head: bytes) -> int:
        return _HEAD.unpack(head)[0]

    def wrap(self, data: memoryview) -> bytes:
        head = _HEAD.pack(len(data))
        self._begin(head)
        into, tag = ctypes.create_string_buffer(len(data)), ctypes.create_string_buffer(_TAG)
        self._pass(into, bytes(data), len(data))
        self._good(self._final(self._ctx, tag, ctypes.byref(self._moved)))
        self._good(self._lib.EVP_CIPHER_CTX_ctrl(self._ctx, _GET_TAG, _TAG, tag))
        return head + into.raw + tag.raw

    def open(self, record: bytes) -> bytes:
        head, sealed, tag = record[: _HEAD.size], record[_HEAD.size : -_TAG], record[-_TAG:]
        self._begin(head)
        into, rest = ctypes.create_string_buffer(len(sealed)), ctypes.create_string_buffer(_TAG)
        self._pass(into, sealed, len(sealed))
        self._good(self._lib.EVP_CIPHER_CTX_ctrl(self._ctx, _SET_TAG, _TAG, tag))
        self._good(self._final(self._ctx, rest, ctypes.byref(self._moved)))
        return into.raw
