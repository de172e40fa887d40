"""Where a process may write files, kept by the kernel (Landlock, Linux 5.13 or newer; elsewhere nothing changes).

It holds for this thread and what it starts, threads and programs, and cannot be taken back. What it allows is less
than before, never more: permissions of files count as ever. Reading is not its business, nor is what has no name.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # one number on every machine
_VERSION, _BENEATH = 1, 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14  # linux/landlock.h
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_SIGNALS = 1 << 1  # to processes that are not under the same rules
SHARED_MEMORY = "/dev/shm"  # under names, as UCX makes it
_DEVICES = ("/dev", "/proc")  # what is there may be written, but nothing made


def version() -> int:
    """Of what the kernel offers; 0: nothing."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE, None, 0, _VERSION))


def only_write(folders: Iterable[str]) -> bool:
    """From now on files are made, changed and removed beneath these folders only; those of ``/dev`` and ``/proc`` are
    written where they are. Signals reach what this process starts. Needs no_new_privs. False where the kernel cannot.
    """
    offered = version()
    if not offered:
        return False
    rights = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if offered >= 2 else 0) | (_TRUNCATE if offered >= 3 else 0)
    written = _WRITE_FILE | rights & _TRUNCATE
    size = 24 if offered >= 6 else 8
    ruleset = _call(_CREATE, struct.pack("=QQQ", rights, 0, _SIGNALS if offered >= 6 else 0)[:size], size, 0)
    if ruleset < 0:
        return False
    try:
        for folder, allowed in [*((x, rights) for x in folders), *((x, written) for x in _DEVICES)]:
            place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                if _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", allowed, place), 0):
                    return False
            finally:
                os.close(place)
        return _call(_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _call(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    return libc.syscall(ctypes.c_long(number), *given)
