"""A daemon with a client to question it, and the smallest client of a worker."""

import contextlib
import signal
import time

from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.link import connect
from rgpu.session import Connection, Session
from rgpu.wire import ops
from rgpu.wire.codec import pack, unpack
from tests.support.leaks import command_line
from tests.support.servers import Server


class Daemon(Server):
    """A server of one cpu device unless the arguments say otherwise; ``client`` asks it."""

    def __init__(self, *arguments, **popen):
        super().__init__("cpu:1", "test", *arguments, **popen)
        self.address = parse_address(self.address)
        self.client = DaemonClient(self.address)

    def workers(self):
        return {pid for pid in super().workers() if "rgpu.server.worker" in command_line(pid)}

    def sessions(self):
        return [s for device in self.client.snapshot()["devices"] for s in device["sessions"]]

    def stop(self, number=signal.SIGTERM):
        """The exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                self.process.wait(10)
        super().stop()
        return self.process.returncode


class Talk:
    """The smallest client of a worker."""

    def __init__(self, lease):
        self.lease, self.batch = lease, 0
        self.connection = Connection(
            Session(lease.session, lease.epoch), connect(lease.endpoints, lease.session, token=lease.token)
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
