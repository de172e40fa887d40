"""Where a process may read and write files, kept by the kernel (Landlock, Linux 5.13 or newer; elsewhere nothing
changes).

It holds for this thread and what it starts, threads and programs, and cannot be taken back. What it allows is less
than before, never more: permissions of files count as ever. What has no name is not its business, nor are sockets.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # one number on every machine
_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3  # linux/landlock.h
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # what a rule about a file can speak of
_SIGNALS = 1 << 1  # to processes that are not under the same rules
SHARED_MEMORY = "/dev/shm"  # under names, as UCX makes it
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")  # they may be written, like any folder


def version() -> int:
    """Of what the kernel offers; 0: nothing."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE, None, 0, _VERSION))


def keep_to(write: Iterable[str], read: Iterable[str] | None = None) -> bool:
    """From now on files are made, changed and removed beneath the folders of ``write`` only (or are these files), read
    and run beneath those and ``read`` (None: anywhere); places that are not there are passed over. Other processes
    than those that this one starts get no signals. Needs no_new_privs. False where the kernel cannot."""
    offered = version()
    if not offered:
        return False
    written = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if offered >= 2 else 0) | (_TRUNCATE if offered >= 3 else 0)
    every = written | (_READ if read is not None else 0)
    size = 24 if offered >= 6 else 8
    ruleset = _call(_CREATE, struct.pack("=QQQ", every, 0, _SIGNALS if offered >= 6 else 0)[:size], size, 0)
    if ruleset < 0:
        return False
    try:
        rules = [(place, every) for place in (*write, *DEVICES)]
        rules += [(place, _READ) for place in read or ()]
        return all(_allow(ruleset, place, rights) for place, rights in rules) and _call(_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, name: str, rights: int) -> bool:
    """Rights for a file, or for a folder and all that is beneath it."""
    with contextlib.ExitStack() as after:
        try:
            place = os.open(name, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # it is not there, or this user may not look: nothing to allow
            return True
        after.callback(os.close, place)
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        return _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, place), 0) == 0


def _call(number: int, *arguments: bytes | int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(x) if isinstance(x, int) else x for x in arguments]
    return libc.syscall(ctypes.c_long(number), *given)
