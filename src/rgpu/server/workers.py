"""The worker processes: started ahead, handed out, watched and reaped.

Importing NumPy takes longer than a client should wait, so some workers stand ready. The daemon
and a worker share a SOCK_SEQPACKET socket pair; its end is how each learns of the other's death.
Runs in the daemon's one thread and must never block it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rgpu.errors import ProtocolError
from rgpu.link import ucx
from rgpu.server import landlock
from rgpu.server.confine import Quarters, environment
from rgpu.server.output import Output
from rgpu.wire.codec import pack, unpack
from rgpu.wire.control import Control, Draw, Finished, Grant, Opened, Ready, Stop, Telemetry, Want, Yield

log = logging.getLogger("rgpu.server")

MESSAGE_BYTES = 1 << 16
STOP_SECONDS = 2.0  # between asking a worker to end and ending it
LAST_WORDS = 64  # messages of a worker that has ended, which are heard
BLAS_SPIN = "20"  # 2^20 cycles; OpenBLAS' own 2^28 (0.1 s) keep a core from the neighbours while nothing is computed
REPLENISH_SECONDS = 0.3  # a spare worker starts only after the client that took one got going
BACKOFF_SECONDS = (0.3, 1, 3, 10, 30)  # between starts that failed in a row

WORKER_COMMAND = (sys.executable, "-P", "-m", "rgpu.server.worker")


class Worker:
    """One process and the channel to it."""

    def __init__(
        self,
        kind: str,
        process: subprocess.Popen,
        channel: socket.socket,
        output: Output,
        uid: int | None = None,
    ) -> None:
        self.kind, self.process, self.channel, self.uid = kind, process, channel, uid
        self.output = output
        output.name = self
        self.key = ""  # its public key; empty on a server without keys
        self.secret = b""  # of its sealed links
        self.endpoints: list[str] = []  # empty until it is ready
        self.link = ""  # what carries its session: tcp, shm, ...
        self.session: bytes | None = None
        self.reason = ""  # why it said it ends
        self.kill_at: float | None = None
        self.places: tuple[str, ...] = ()  # folders that it has with its person's other workers
        self.spills = ""  # that one of them which keeps nothing

    def __repr__(self) -> str:
        what = (
            f"session {self.session.hex()[:8]}" if self.session else "ready" if self.endpoints else "starting"
        )
        return f"worker {self.process.pid} ({self.kind}, {what})"

    def tell(self, message: tuple) -> None:
        """Send without waiting; a worker that is gone is noticed by its end of file."""
        try:
            self.channel.send(pack(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            log.debug("%r was not told: %s", self, error)

    def fate(self) -> str:
        """How the process ended, for people."""
        code = self.process.returncode
        if self.reason:
            return self.reason
        if code is not None and code < 0:
            try:
                return f"signal {-code} ({signal.Signals(-code).name})"
            except ValueError:
                return f"signal {-code}"
        return f"exit code {code}"


class Events(Protocol):
    """What the pool tells its owner, the daemon."""

    def worker_ready(self, worker: Worker) -> None: ...
    def worker_told(self, worker: Worker, message: Any) -> None: ...
    def worker_gone(self, worker: Worker) -> None: ...


class Watcher(Protocol):
    """Where descriptors are watched: the daemon's poll loop."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...
    def unwatch(self, fd: int) -> None: ...


class WorkerPool:
    """All workers of a daemon. ``spares`` says how many of each kind stand ready."""

    def __init__(
        self,
        watcher: Watcher,
        events: Events,
        *,
        bind: str,
        ports: tuple[int, int] | None = None,
        keys: bool = False,
        clear: bool = False,
        quarters: Quarters | None = None,
        links: tuple[str, ...] = ("auto",),
        spill_directory: str = "",
        spares: dict[str, int],
        threads: int,
        command: tuple[str, ...] = WORKER_COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watcher, self._events, self._clock = watcher, events, clock
        self._spares, self._command = spares, command
        self._quarters = quarters or Quarters()
        self._listen = ["--bind", bind, "--links", ",".join(links), "--peers", ",".join(links)]
        self._listen += [*["--keys"] * keys, *["--clear"] * clear, *["--alone"] * self._quarters.own]
        self._disk, self._groups, self._spill = self._quarters.disk, self._quarters.groups, spill_directory
        self._bounds: list[str] = []  # what a client's native code may read and write
        if keys or self._quarters.own:
            shares = "ucx" in links or ("auto" in links and ucx.worthwhile())
            self._bounds = self._quarters.bounds(spill_directory, landlock.SHARED_MEMORY * shares)
        self._listen += ["--ports", "{}-{}".format(*ports)] if ports else []
        self._environment = _worker_environment(threads)
        self._workers: list[Worker] = []
        self._leaving: list[Worker] = []  # the channel has ended, the process not yet
        self._failures = dict.fromkeys(spares, 0)
        self._start_at = dict.fromkeys(spares, 0.0)
        self._closing = False

    def take(self, kind: str) -> Worker | None:
        """A ready worker that is nobody's, or None."""
        worker = next((w for w in self._workers if w.kind == kind and w.endpoints and not self._busy(w)), None)
        if worker:
            self._start_at[kind] = max(self._start_at[kind], self._clock() + REPLENISH_SECONDS)
        return worker

    def starting(self, kind: str) -> int:
        return sum(w.kind == kind and not w.endpoints for w in self._workers)

    def failures(self, kind: str) -> int:
        """Starts of this kind that failed in a row."""
        return self._failures[kind]

    def grant(
        self, worker: Worker, session: bytes, *, person: str = "", share: float = 0.0, **rest: Any
    ) -> None:
        """Hand a ready worker to a session; ``person``: whose folder it may use, ``share``: its part of the compute."""
        worker.session = session
        folder = self._quarters.folder(person, worker.uid)
        spill = self._quarters.spill(self._spill, person, worker.uid)
        if person:
            worker.places, worker.spills = tuple(place for place in (folder, spill) if place), spill
            self._disk.enter(*worker.places)
        if self._groups is not None:
            self._groups.lend(worker.process.pid, worker.kind, rest["memory_limit"], share)
        worker.tell(Grant.encode(session=session, folder=folder, spill_directory=spill, **rest))

    def stop(self, worker: Worker, reason: str) -> None:
        """Ask it to end, and end it if it does not."""
        if worker.kill_at is None:
            worker.kill_at = self._clock() + STOP_SECONDS
            worker.tell(Stop.encode(reason=reason))

    def by_session(self, session: bytes) -> Worker | None:
        return next((w for w in self._workers if w.session == session), None)

    def spawn(self, kind: str) -> bool:
        """Start a worker; ``worker_ready`` follows. False: this host has no room for a process now."""
        try:
            self._spawn(kind)
        except OSError as error:
            log.error("a worker (%s) cannot be started: %s", kind, error)
            self._start_failed(kind)
            return False
        return True

    def _spawn(self, kind: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            fd = theirs.fileno()
            output = Output(self._watcher, self._clock)
            undo.callback(output.close)
            undo.callback(os.close, output.theirs)
            user = self._quarters.move_in()
            undo.callback(self._quarters.move_out, None, user.get("user"))
            process = subprocess.Popen(
                [*self._command, "--fd", str(fd), "--backend", kind, *self._listen, *self._bounds * (kind == "cpu")],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=output.theirs,
                stderr=output.theirs,
                env=self._environment,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the daemon's terminal is the daemon's business
                **user,
            )
            undo.pop_all()
        os.close(output.theirs)
        if self._groups is not None:
            self._groups.enter(process.pid)
        worker = Worker(kind, process, ours, output, user.get("user"))
        self._workers.append(worker)
        self._watcher.watch(ours.fileno(), lambda: self._readable(worker))
        output.watch()
        log.debug("started %r", worker)

    def tick(self) -> float:
        """Do what is due; the seconds until there may be more to do."""
        now, wait = self._clock(), 1.0
        for worker in list(self._leaving):
            self._reap(worker, now)
        for worker in self._workers:
            worker.output.tick()
            if worker.places and (full := self._disk.full(*worker.places)):
                self.stop(worker, full)
            if worker.kill_at is not None and now >= worker.kill_at:
                worker.process.kill()
        for worker in [w for w in self._workers if w.process.poll() is not None]:
            for _ in range(LAST_WORDS):
                if worker in self._workers:
                    self._readable(worker)
            if worker in self._workers:  # a child that its native code started has the channel, too
                self._ended(worker)
        for kind, wanted in self._spares.items() if not self._closing else ():
            free = sum(w.kind == kind and not self._busy(w) for w in self._workers)
            # One at a time: a start costs a core for a third of a second.
            if free < wanted and not self.starting(kind):
                if now >= self._start_at[kind]:
                    self.spawn(kind)
                else:
                    wait = min(wait, self._start_at[kind] - now)
        return 0.01 if self._leaving else wait

    def close(self, seconds: float = 3.0) -> None:
        """End all workers and wait for them; none is left behind."""
        self._closing = True
        for worker in self._workers:
            if worker.session is None:  # nobody's yet, perhaps still importing: nothing to take leave of
                worker.process.kill()
            else:
                self.stop(worker, "the server stops")
                worker.channel.shutdown(socket.SHUT_WR)
        deadline = self._clock() + seconds
        for worker in self._workers + self._leaving:
            try:
                worker.process.wait(max(0.0, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.output.close()
            self._move_out(worker)
        self._disk.close()
        for worker in self._workers:
            self._watcher.unwatch(worker.channel.fileno())
            worker.channel.close()
        self._workers.clear()
        self._leaving.clear()

    @staticmethod
    def _busy(worker: Worker) -> bool:
        return worker.session is not None or worker.kill_at is not None

    def _readable(self, worker: Worker) -> None:
        try:
            data = worker.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended(worker)
            return
        try:
            message = Control.decode(unpack(data))
        except ProtocolError as error:
            # A worker runs what its client sends; it is not trusted with more than its own end.
            log.error("%r sent nonsense and is ended: %s", worker, error)
            worker.process.kill()
            return
        if isinstance(message, (Telemetry.Record, Draw.Record, Want.Record, Yield.Record, Opened.Record)):
            if isinstance(message, Telemetry.Record):
                worker.link = message.link
            self._events.worker_told(worker, message)
        elif isinstance(message, Finished.Record):
            worker.reason = message.reason
        elif isinstance(message, Ready.Record) and not worker.endpoints:
            worker.endpoints, worker.key = message.endpoints, message.key
            worker.secret = message.secret
            self._failures[worker.kind] = 0
            self._events.worker_ready(worker)

    def _ended(self, worker: Worker) -> None:
        """It says nothing any more."""
        self._watcher.unwatch(worker.channel.fileno())
        worker.channel.close()
        self._workers.remove(worker)
        self._leaving.append(worker)
        worker.kill_at = self._clock() + STOP_SECONDS
        self._reap(worker, self._clock())

    def _reap(self, worker: Worker, now: float) -> None:
        if worker.process.poll() is None:
            if worker.kill_at is not None and now >= worker.kill_at:
                worker.process.kill()
            return
        self._leaving.remove(worker)
        worker.output.close()
        self._move_out(worker)
        self._disk.leave(*worker.places, passing=worker.spills)
        if not worker.endpoints:
            self._start_failed(worker.kind)
        self._events.worker_gone(worker)

    def _move_out(self, worker: Worker) -> None:
        """Its process has ended; what it started ends now."""
        self._quarters.move_out(worker.process.pid, worker.uid)
        if self._groups is not None:
            self._groups.leave(worker.process.pid)
            self._groups.tidy()

    def _start_failed(self, kind: str) -> None:
        self._failures[kind] += 1
        pause = BACKOFF_SECONDS[min(self._failures[kind], len(BACKOFF_SECONDS)) - 1]
        self._start_at[kind] = self._clock() + pause


def _worker_environment(threads: int) -> dict[str, str]:
    """What a worker sees of the daemon's environment, with its libraries kept to their part of the cores."""
    kept = environment(os.environ)
    # Under `rgpu run` this folder makes `import cupy` mean rgpu; a worker needs CuPy itself.
    alias = str(Path(__file__).parents[1] / "_site")
    if "PYTHONPATH" in kept:
        paths = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if os.path.abspath(path) != alias)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        kept.setdefault(variable, str(threads))
    kept.setdefault("OPENBLAS_THREAD_TIMEOUT", BLAS_SPIN)  # how long an idle thread of its pool looks for work
    return kept
