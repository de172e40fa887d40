"""What a test may leave behind: nothing. Linux only, from /proc, cheap enough for every test.

Counted are child processes, non-daemon threads, listening TCP sockets and rgpu's shared memory. The daemon
that a program starts for itself (``--parent PID``) belongs to the whole process and ends with it, so it is
allowed while the tests run.
"""

import os
import threading
import time
from pathlib import Path

PROC = Path("/proc")
MARK = "RGPU_TEST_RUN"  # inherited by every process of a run, so orphans are found as well


def _read(path, default=b""):
    try:
        return path.read_bytes()
    except OSError:  # the process has just ended, or is another user's
        return default


def command_line(pid):
    return _read(PROC / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def is_embedded_daemon(pid):
    line = command_line(pid)
    return "rgpu" in line and "--parent" in line.split()


def children(pid="self"):
    found = set()
    for task in (PROC / str(pid) / "task").glob("*/children"):
        found.update(int(child) for child in _read(task).split())
    return found


def family(pid):
    """The process and everything below it."""
    found = {pid}
    for child in children(pid):
        found |= family(child)
    return found


def _processes():
    return {f"process {pid}: {command_line(pid)}" for pid in children() if not is_embedded_daemon(pid)}


def _threads():
    main = threading.main_thread()
    return {f"thread {t.name}" for t in threading.enumerate() if t is not main and not t.daemon}


def _listening():
    ports = {}
    for table in ("tcp", "tcp6"):
        for line in _read(PROC / "self/net" / table).decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # TCP_LISTEN
                ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in ports:
            mine.add(f"listening socket on port {ports[target[8:-1]]}")
    return mine


def _shared_memory():
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith("rgpu")}


KINDS = {"processes": _processes, "threads": _threads, "sockets": _listening, "memory": _shared_memory}


def snapshot():
    return {kind: look() for kind, look in KINDS.items()}


def left_behind(before, patience=5.0, allowed=()):
    """What is there now and was not before, after waiting for it to go."""
    end = time.monotonic() + patience
    while True:
        now = snapshot()
        left = {name for kind in KINDS if kind not in allowed for name in now[kind] - before[kind]}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def marked(mark):
    """Every other process that inherited the mark, but for embedded daemons and their workers."""
    wanted, found, allowed = f"{MARK}={mark}".encode(), set(), set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if wanted in _read(entry / "environ").split(b"\0"):
            pid = int(entry.name)
            found.add(pid)
            if is_embedded_daemon(pid):
                allowed |= family(pid)
    return {f"process {pid}: {command_line(pid)}": pid for pid in found - allowed}
