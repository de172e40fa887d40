"""rgpu-server processes for tests, and sessions with their workers."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.link import connect
from rgpu.session import Connection, Session
from rgpu.wire import ops
from rgpu.wire.codec import pack, unpack
from support.leaks import children, command_line


class Server:
    """A daemon on a free loopback port; ``client`` asks it."""

    def __init__(self, *arguments, environment=None):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rgpu.server", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ) | (environment or {}),
        )
        ready, _, _ = select.select([self.process.stdout], [], [], 20)
        self.line = self.process.stdout.readline().decode() if ready else ""
        match = re.search(r"listening on (tcp://\S+)", self.line)
        if not match:
            self.stop()
            raise AssertionError(f"no ready line: {self.line!r}")
        self.address = parse_address(match[1])
        self.client = DaemonClient(self.address)

    @property
    def workers(self):
        return {pid for pid in children(self.process.pid) if "rgpu.server.worker" in command_line(pid)}

    def sessions(self):
        return [s for device in self.client.snapshot()["devices"] for s in device["sessions"]]

    def stop(self, number=signal.SIGTERM):
        """The exit code."""
        if hasattr(self, "client"):
            self.client.close()
        self.process.send_signal(number)
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@contextlib.contextmanager
def serving(*arguments, **more):
    server = Server(*arguments, **more)
    try:
        yield server
    finally:
        server.stop()


class Talk:
    """The smallest client of a worker."""

    def __init__(self, lease):
        self.lease, self.batch = lease, 0
        self.connection = Connection(
            Session(lease.session, lease.epoch), connect(lease.endpoint, lease.session)
        )

    def post(self, *commands):
        self.batch += 1
        self.connection.post([pack([self.batch, list(commands)])])

    def sync(self, seconds=10.0):
        """Everything before has run; the worker's answer to it."""
        self.post(ops.Sync.encode(reply_to=1))
        end = time.monotonic() + seconds
        while (frames := self.connection.take()) is None:
            self.connection.pump()
            self.connection.wait(0.05)
            if time.monotonic() > end:
                raise AssertionError(f"no answer: {self.connection!r}")
        self.connection.mark_done(1)
        return unpack(frames[0])

    def bye(self):
        self.post(ops.Bye.encode())
        self.connection.close()
