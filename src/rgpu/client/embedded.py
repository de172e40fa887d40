"""A local daemon of a program's own, started when no server is configured.

It listens on loopback on a free port, serves cpu devices (and local GPUs), is stopped with the pool, and
ends by itself when the program dies in any other way. It is the same daemon as everybody's.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

from rgpu.config import Address, DeviceSpec, parse_address
from rgpu.errors import ServerUnavailable

START_SECONDS = 20.0
STOP_SECONDS = 4.0
_READY = re.compile(rb"listening on (tcp://\S+)")


class EmbeddedDaemon:
    """A daemon process that belongs to this one."""

    def __init__(self, devices: DeviceSpec) -> None:
        if sys.platform != "linux":
            raise ServerUnavailable(
                f"no server is named, and none can be started here: rgpu-server needs Linux, this is {sys.platform}. "
                "Name the servers in RGPU_SERVERS, in a token (RGPU_TOKEN) or with `rgpu run --server`"
            )
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "rgpu.server"),
                *("--bind", "127.0.0.1", "--port", "0", "--name", "local", "--prestart", "1"),
                *("--devices", str(devices), "--parent", str(self._owner), "--keys", "none"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the program; the daemon ends after it
        )
        self.address = self._await_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and its workers; harmless when it has ended. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _await_ready(self) -> Address:
        """Read the ready line, with a time limit."""
        output, deadline, text = self._process.stdout, time.monotonic() + START_SECONDS, b""
        while b"\n" not in text:
            left = deadline - time.monotonic()
            chunk = b""
            if left > 0 and select.select([output], [], [], left)[0]:
                chunk = os.read(output.fileno(), 4096)
            if not chunk:
                break
            text += chunk
        match = _READY.search(text)
        if not match:
            self.stop()
            how = (
                f"ended with exit code {self._process.returncode}"
                if text or left > 0
                else "was not ready in time"
            )
            raise ServerUnavailable(
                f"the local rgpu-server {how}; what it said stands above. "
                "Run 'rgpu-server --port 0' to see it by itself, or set RGPU_SERVERS to use other hosts"
            )
        return parse_address(match[1].decode()).but(own=True)


def _environment() -> dict[str, str]:
    """So that the daemon finds the rgpu of this program, installed or not."""
    environment = dict(os.environ)
    root = str(Path(__file__).parents[2])
    if Path(root).name not in ("site-packages", "dist-packages"):
        paths = [
            path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != root
        ]
        environment["PYTHONPATH"] = os.pathsep.join([root, *paths])
    return environment
