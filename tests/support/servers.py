"""Real daemons for tests: started on a free loopback port, stopped and checked afterwards."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

from rgpu.link import shm
from tests.support import leaks

#: What a whole run of the tests may choose (``RGPU_LINK=ucx pytest ...``); it reaches the programs that tests start.
CHOSEN = (
    leaks.MARK, "RGPU_PURE", "RGPU_CHECK_PREDICTION", "RGPU_LINK", "RGPU_LINKS", "RGPU_REPLAY", "RGPU_CHECKSUM",
)  # fmt: skip
_READY = re.compile(r"listening on tcp://(\S+)")


class Server:
    """One rgpu-server process. ``address`` is host:port. ``enter``: what stands before its command."""

    def __init__(self, devices="cpu:2", name="test", *options, enter=(), **popen):
        self.log = b""
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-m", "rgpu.server", "--devices", devices, "--port", "0", "--name", name]
            + list(options),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            **{"stderr": subprocess.DEVNULL, **popen},
        )
        deadline, text = time.monotonic() + 30, ""
        while "\n" not in text and time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.5)[0]:
                chunk = os.read(self.process.stdout.fileno(), 4096).decode()
                if not chunk:
                    break
                text += chunk
        match = _READY.search(text)
        if match is None:
            self.process.kill()
            raise RuntimeError(f"rgpu-server did not become ready: {text!r}")
        self.address = match[1]

    @property
    def pid(self):
        return self.process.pid

    def workers(self):
        """Process ids of this daemon's children."""
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def near():
    """The kind of link that two workers of one host take: tcp where this run's servers offer nothing but zmq."""
    return "tcp" if shm.missing() or only_zmq() else "shm"


def only_zmq():
    """Whether this run's servers offer links of ZeroMQ alone (``RGPU_LINK=zmq pytest ...``)."""
    return os.environ.get("RGPU_LINKS") == "zmq"


def free_port():
    """A TCP port of loopback that nobody listens at now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


#: of a program without the C core, over a link that it can have
PURE = {"RGPU_PURE": "1"} | ({"RGPU_LINK": "tcp"} if os.environ.get("RGPU_LINK") in ("shm", "ucx") else {})


def environment():
    """Ours, of rgpu's settings only what this run has chosen."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RGPU_") or name in CHOSEN}


def program(source, *servers, timeout=60, check=True, launcher=("-c",), arguments=(), **settings):
    """Run a Python program in a fresh process against servers; its completed process."""
    env = environment()
    env["RGPU_SERVERS"] = ",".join(s.address if isinstance(s, Server) else s for s in servers)
    env.update(settings)
    done = subprocess.run(
        [sys.executable, *launcher, source, *arguments],
        env=env,
        timeout=timeout,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if check and done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
