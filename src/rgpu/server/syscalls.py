"""System calls that a worker does without: those by which code that got into a process goes on into the kernel, into
other processes or out of its namespaces.

A list of what is refused, not of what is allowed: drivers and libraries of math need calls that nobody has listed, so
this makes an attack narrower and is no cage. Linux on x86-64 and aarch64; elsewhere nothing is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: name -> (x86-64, aarch64); the newer ones have one number everywhere
_REFUSED: dict[str, tuple[int, ...]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438,),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428,), "move_mount": (429,), "fsopen": (430,), "fsconfig": (431,),
    "fsmount": (432,), "fspick": (433,), "mount_setattr": (442,), "open_by_handle_at": (304, 265),
    # large and rarely used parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "io_uring_setup": (425,), "io_uring_enter": (426,),
    "io_uring_register": (427,), "fanotify_init": (300, 262), "quotactl": (179, 60),
    # the host itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
}  # fmt: skip
# whose files are and who may use them: Landlock has no say in it
_MODES: dict[str, tuple[int, ...]] = {
    "chmod": (90, 53), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452,), "chown": (92, 54),
    "lchown": (94, 54), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463,), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466,),
}  # fmt: skip
_PROGRAMS: dict[str, tuple[int, ...]] = {"execve": (59, 221), "execveat": (322, 281)}
_CLONE, _CLONE3, _SECCOMP = (56, 220), 435, (317, 277)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWUSER and the like
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH

# struct seccomp_data: the number at 0, the architecture at 4, the first argument's lower half at 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SET_FILTER, _ALL_THREADS, _AS_FAST_AS_BEFORE = 1, 1, 4  # the last: older kernels slowed the whole process down


def refuse(programs: bool, modes: bool = False) -> bool:
    """From now on, and for everything that this process starts, these calls fail with EPERM; ``programs``: starting
    other programs as well, ``modes``: changing the owners and modes of files. Needs no_new_privs. False where the
    system has no such filters."""
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return False
    column, _ = machine
    code = _filter(*machine, {**_REFUSED, **(_PROGRAMS if programs else {}), **(_MODES if modes else {})})
    count = len(code) // 8
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", count, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.syscall(_SECCOMP[column], _SET_FILTER, _ALL_THREADS | _AS_FAST_AS_BEFORE, program) == 0:
        return True
    if ctypes.get_errno() in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _filter(column: int, architecture: int, refused: dict[str, tuple[int, ...]]) -> bytes:
    """The program that the kernel runs before each call. Jumps count instructions to pass over."""
    numbers = [columns[min(column, len(columns) - 1)] for columns in refused.values()]
    tail = [
        (_EQUAL, 0, 2, _CLONE[column]),
        (_LOAD, 0, 0, 16),
        (_ANY_BIT, 2, 1, _NEW_NAMESPACES),
        (_EQUAL, 2, 0, _CLONE3),  # its flags are in memory that may change: libraries fall back to clone
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    deny = 5 + len(numbers) + 5  # where EPERM is
    head = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 0, deny - 2, architecture),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, deny - 1 - 4, min(*numbers, _CLONE[column])),  # below: reading, writing, waiting
        (_AT_LEAST, deny - 5, 0, 1 << 30),
    ]
    tests = [(_EQUAL, deny - (len(head) + at) - 1, 0, number) for at, number in enumerate(numbers)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*head, *tests, *tail])
