"""A real etcd on loopback for tests, with its data in a folder of the test: stopped, killed and started again."""

import functools
import http.client
import os
import shutil
import signal
import socket
import subprocess

import pytest

from tests.support.waiting import wait_until

needs_etcd = pytest.mark.skipif(
    not (shutil.which("etcd")), reason="no etcd: apt install etcd-server (scripts/test does it as root)"
)


@functools.cache
def _environment():
    own = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    return own | ({} if os.uname().machine == "x86_64" else {"ETCD_UNSUPPORTED_ARCH": "arm64"})


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class EtcdServer:
    """``url`` is what RGPU_REGISTRY is set to; it stays the same over ``kill`` and ``start``."""

    def __init__(self, folder):
        self._folder, self.port, self._peers = folder, free_port(), free_port()
        self.url = f"etcd://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        client, peers = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peers}"
        with open(self._folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                ["etcd", "--data-dir", str(self._folder / "data"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peers,
                 "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip
        wait_until(self._healthy, 30, 0.05)

    def _healthy(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"etcd ended: {(self._folder / 'etcd.log').read_text()[-2000:]}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(10)

    def wipe(self):
        """What it knew is gone when it starts again."""
        shutil.rmtree(self._folder / "data")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
