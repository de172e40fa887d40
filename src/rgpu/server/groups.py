"""A control group (cgroup v2) for each worker and all that it starts, where the daemon's own group was delegated to it:
memory, processes and processor time of one session, whatever it forks.

Elsewhere the limits of single processes have to do. ``systemd`` delegates by ``Delegate=``; a group that was not
delegated is left alone, also by root, who could change it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from rgpu.errors import ConfigError

log = logging.getLogger("rgpu.server")

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_WANTED = ("memory", "pids", "cpu")
_DAEMON = "daemon"  # where the daemon itself goes: a group with processes of its own divides nothing
PROCESSES = 512  # and threads, of a worker: a compiler, and a thread for each core and more
_ROOM = {
    "cpu": 2 << 30,
    "cuda": 8 << 30,
}  # bytes of host memory besides twice that of the lease: drivers take gigabytes
_WEIGHT = 100  # of a worker with a whole device, or without a part


class Groups:
    """The groups beneath ``base``, which is the daemon's own; ``kinds``: what they bound."""

    def __init__(self, base: Path, kinds: tuple[str, ...]) -> None:
        self._base, self._kinds = base, kinds

    def enter(self, pid: int) -> None:
        """A worker has started."""
        group = self._of(pid)
        try:
            group.mkdir(exist_ok=True)
            self._write(group, "pids.max", PROCESSES)
            self._write(group, "memory.oom.group", 1)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.warning("a worker has no control group of its own: %s", error)

    def lend(self, pid: int, kind: str, memory: int, share: float) -> None:
        """It has a session with so many bytes of a device, and such a part of the compute (0: no part)."""
        group = self._of(pid)
        self._write(group, "memory.max", 2 * memory + _ROOM.get(kind, _ROOM["cpu"]))
        self._write(group, "cpu.weight", max(1, round(_WEIGHT * (share or 1.0))))

    def leave(self, pid: int) -> None:
        """It has ended, and so does what it has left behind."""
        group = self._of(pid)
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:  # what was killed has not ended yet: an empty group costs nothing
            log.debug("the control group of worker %d stays: %s", pid, error)

    def tidy(self) -> None:
        """Take away the groups of workers that are gone."""
        for group in self._base.glob("worker-*"):
            with contextlib.suppress(OSError):
                group.rmdir()

    def _of(self, pid: int) -> Path:
        return self._base / f"worker-{pid}"

    def _write(self, group: Path, name: str, value: int) -> None:
        if name.partition(".")[0] in self._kinds:
            try:
                (group / name).write_text(str(value))
            except OSError as error:  # a kernel without this one; the others hold
                log.debug("%s of a worker's control group cannot be set: %s", name, error)


def find(setting: str = "auto", root: Path = _ROOT, own: Path = _OWN) -> Groups | None:
    """The groups that this daemon may make; None where it may not, and nothing has changed. ``setting`` ``off``: none;
    ``on``: ConfigError in place of None, and no delegation has to be seen (a container that has a group of its own)."""
    if setting == "off":
        return None
    try:
        return _taken(root, own, asked=setting == "on")
    except (OSError, ValueError) as error:
        if setting == "on":
            raise ConfigError(
                f"--control-groups on: this process's control group cannot be divided ({error}); "
                "systemd lets a service do that with Delegate=yes and without ProtectControlGroups"
            ) from None
        log.debug("no control groups for workers: %s", error)
        return None


def _taken(root: Path, own: Path, asked: bool) -> Groups:
    path = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "")
    base = root / path.lstrip("/")
    if not asked and not _delegated(base):
        raise ValueError(f"{base} is not delegated to this process")
    kinds = tuple(kind for kind in _WANTED if kind in (base / "cgroup.controllers").read_text().split())
    if not kinds:
        raise ValueError(f"{base} has none of the controllers {', '.join(_WANTED)}")
    if others := set((base / "cgroup.procs").read_text().split()) - {str(os.getpid())}:
        raise ValueError(f"{base} has {len(others)} other processes")
    place = base / _DAEMON
    place.mkdir(exist_ok=True)
    try:
        (place / "cgroup.procs").write_text(str(os.getpid()))
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{kind}" for kind in kinds))
    except OSError:
        with contextlib.suppress(OSError):
            (base / "cgroup.procs").write_text(str(os.getpid()))
            place.rmdir()
        raise
    log.info("workers have control groups beneath %s: %s", base, ", ".join(kinds))
    return Groups(base, kinds)


def _delegated(base: Path) -> bool:
    """Whether the service manager says so."""
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(base, name) == b"1":
                return True
    return False
