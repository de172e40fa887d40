"""What a worker is kept from: the daemon's secrets, other people's files and processes, the host's memory.

``Quarters`` is the daemon's half: which user a worker runs as, where it may write, what of the environment it sees.
``confine`` is the worker's half, called before it hears a client. Nothing here trusts the worker to have obeyed
when it is over: what is left of its processes is ended by the daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgpu.config import ServerConfig
from rgpu.errors import ConfigError
from rgpu.server import groups, landlock, syscalls
from rgpu.server.disk import Disk

#: of the daemon's environment; anything else may be a secret of whoever started it
_INHERITED = re.compile(
    r"PATH|HOME|TMPDIR|XDG_CACHE_HOME|PYTHON(PATH|HOME|UTF8|HASHSEED|DONTWRITEBYTECODE|WARNINGS)|LD_LIBRARY_PATH|LANG|LANGUAGE|LC_\w+|TZ|TERM|CXX"
    r"|(CUDA|CUPY|NVIDIA|NCCL|HIP|ROCR|ROCM|UCX|OMP|OPENBLAS|MKL|GOMP|MALLOC)_\w+|(?!RGPU_TOKEN|RGPU_KEYS)RGPU_\w+"
)
_OPEN_FILES = 1024
_PROCESSES = groups.PROCESSES  # of a worker that is a user of its own
_SWEEPS = 20  # through the processes of the host, while those to be ended start others
_FILE_BYTES = 1 << 30  # of one file: no compiled kernel is as large, and no log gets longer by a worker
_ROOM = 2 << 30  # bytes of a worker's own, besides twice the memory of its device

CACHES = Path("/var/cache")  # where workers with users of their own keep what they compile

PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38  # sys/prctl.h
_CAPABILITIES = 0x20080522  # the version of linux/capability.h
# What root's workers keep of root's powers: to enter folders of others (a Python that another user installed), pinned
# memory, places of memory. Not: raw memory and disks, networks, other processes.
_KEPT = sum(1 << bit for bit in (0, 1, 2, 3, 4, 14, 23))


def environment(source: Mapping[str, str]) -> dict[str, str]:
    """What of the daemon's environment a worker may see. Relative places in PYTHONPATH become absolute."""
    kept = {name: value for name, value in source.items() if _INHERITED.fullmatch(name)}
    if "PYTHONPATH" in kept:
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
    return kept


@dataclass(frozen=True)
class Users:
    """The user ids that workers run as; more than one: each worker has one that no other has."""

    first: int
    last: int
    group: int


def parse_users(text: str) -> Users:
    """``nobody``, ``1234`` or ``60000-60063``. Raises ValueError."""
    if match := re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text.strip()):
        first, last = int(match[1]), int(match[2] or match[1])
        group = first
    else:
        try:
            entry = pwd.getpwnam(text.strip())
        except KeyError:
            raise ValueError(f"there is no user {text!r} on this host") from None
        first = last = entry.pw_uid
        group = entry.pw_gid
    if not 0 < first <= last:
        raise ValueError("workers run as another user than root")
    return Users(first, last, group)


class Quarters:
    """Where this daemon's workers live. ``users`` None: they run as the daemon's own user. ``readable``: more than they
    need that they may read; ``hidden``: what they may not, wherever it is; ``disk``: bytes of a person's files (0: any
    number); ``control``: the control groups of workers."""

    def __init__(
        self,
        users: str | None = None,
        readable: Iterable[str] = (),
        hidden: Iterable[str] = (),
        disk: int = 0,
        control: groups.Groups | None = None,
    ) -> None:
        try:
            self._users = parse_users(users) if users else None
        except ValueError as error:
            raise ConfigError(f"--worker-user {users}: {error}") from None
        if self._users and os.getuid() != 0:
            raise ConfigError("--worker-user needs a daemon that root started: others cannot change users")
        self._taken: set[int] = set()
        self._lent: dict[int, Path] = {}  # user id -> the folder that is its user's now
        root = CACHES if self._users else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._base = root / "rgpu"
        self._readable, self._hidden = tuple(readable), tuple(hidden)
        self.disk, self.groups = Disk(disk), control

    @classmethod
    def of(cls, config: ServerConfig, hidden: Iterable[str]) -> Quarters:
        """As a server's settings say."""
        made = groups.find(config.control_groups)
        return cls(config.worker_user, config.readable, hidden, config.disk_per_person, made)

    @property
    def own(self) -> bool:
        """Whether each worker is a user that nobody else is."""
        return self._users is not None and self._users.first != self._users.last

    def move_in(self) -> dict[str, Any]:
        """For Popen: the user of the next worker. OSError when none is free."""
        users = self._users
        if users is None:
            return {}
        if users.first == users.last:
            return {"user": users.first, "group": users.group, "extra_groups": []}
        uid = next((uid for uid in range(users.first, users.last + 1) if uid not in self._taken), None)
        if uid is None:
            raise OSError(0, f"all {users.last - users.first + 1} users of --worker-user have a worker")
        self._taken.add(uid)
        return {"user": uid, "group": uid, "extra_groups": []}

    def move_out(self, process: int | None, uid: int | None) -> None:
        """The worker has ended (None: it never started): so does everything that it began."""
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)  # it had a session of its own
        if uid in self._taken:
            _end_all_of(uid)
            if folder := self._lent.pop(uid, None):
                os.chown(folder, 0, -1)  # another person's worker may be this user next
            self._taken.discard(uid)

    def bounds(self, *more: str) -> list[str]:
        """For a worker's command line: where it may write, which is the folders of people and ``more``, and what it
        may read besides what it needs."""
        written = [f"--write={place}" for place in (str(self.people), *more) if place]
        read = [f"--read={place}" for place in self._readable]
        return [*written, *read, *[f"--hide={place}" for place in self._hidden]]

    @property
    def people(self) -> Path:
        """Where the folders of people are; made, so that it can be named to the kernel."""
        people = self._base / "people"
        people.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._users is not None:
            for place in (self._base, people):
                place.chmod(0o711)
        return people

    def folder(self, person: str, uid: int | None) -> str:
        """A folder that only this person's workers enter, for what they keep: compiled kernels."""
        if not person and uid is None:
            return ""  # one user, who owns everything anyway
        folder = _own_folder(self.people, person, uid)
        if uid is not None and self.own:
            self._lent[uid] = folder
        return str(folder)

    def spill(self, directory: str, person: str, uid: int | None) -> str:
        """The same for arrays that are spilled, in the operator's directory for that; empty if there is none."""
        if not directory or not person:
            return directory
        return str(_own_folder(Path(directory), person, uid))


def _own_folder(parent: Path, person: str, uid: int | None) -> Path:
    folder = parent / ((person or "anybody") + (f"-{uid}" if uid is not None else ""))
    folder.mkdir(mode=0o700, exist_ok=True)
    if uid is not None:
        os.chown(folder, uid, -1)
    return folder


def _end_all_of(uid: int) -> None:
    """Kill every process of a user that is a worker's own, also those that others start meanwhile."""
    for _ in range(_SWEEPS):
        ended = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    told = (entry / "status").read_text()
                    if f"\nUid:\t{uid}\t" in told and "\nState:\tZ" not in told:
                        os.kill(int(entry.name), signal.SIGKILL)
                        ended += 1
        if not ended:
            return


def confine(
    programs: bool = True, alone: bool = False, write: Sequence[str] = (), read: Sequence[str] | None = None
) -> None:
    """Give up what a worker never needs: new privileges, core dumps, being read by others, files without end, the calls
    of ``server.syscalls``. ``programs``: whether it starts some, which a compiler of custom kernels is. ``alone``: no
    other process has its user, so that processes can be counted. ``write``: files are written beneath these only,
    their modes and owners stay as they are, and they are read beneath those of ``read`` (None: anywhere)."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
    if alone:
        _lower(resource.RLIMIT_NPROC, _PROCESSES)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((PR_SET_NO_NEW_PRIVS, 1), (PR_SET_DUMPABLE, 0)):
            if libc.prctl(option, value, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "a worker cannot be confined on this system")
    if write:
        _drop_capabilities()
        landlock.keep_to(write, read)
    syscalls.refuse(programs=not programs, modes=bool(write))


def _drop_capabilities() -> None:
    """Root's powers over the host, of which a worker that root runs has no need; no new privileges bring them back."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, for 32 bits each
    header = struct.pack("=Ii", _CAPABILITIES, 0)
    if libc.capget(header, sets) == 0:
        for at in range(3):
            sets[at] &= _KEPT
            sets[at + 3] = 0
        libc.capset(header, sets)


def confine_memory(device_memory: int) -> None:
    """On a cpu device arrays are this process's memory: what a client can make it take ends here."""
    _lower(resource.RLIMIT_DATA, _data_in_use() + 2 * device_memory + _ROOM)


def confine_files(largest: int = 0) -> None:
    """No file that is written from here on gets larger than ``largest`` bytes, or than any that a worker needs."""
    _lower(resource.RLIMIT_FSIZE, max(largest, _FILE_BYTES))


def _lower(limit: int, value: int) -> None:
    soft, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _data_in_use() -> int:
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return 1 << 30


def settle_in(folder: str) -> None:
    """What this session's libraries keep goes into the person's own folder."""
    if folder:
        os.environ |= {"HOME": folder, "TMPDIR": folder, "XDG_CACHE_HOME": folder, "CUPY_CACHE_DIR": f"{folder}/cupy"}
