"""The servers that scripts/bench runs against, and the kinds of links to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from anchors import line_of
from native import Native, Unavailable

import rgpu as cp
from rgpu import tokens
from rgpu.client import pool
from rgpu.config import parse_address
from rgpu.errors import RgpuError
from rgpu.server import keys as server_keys

LINKS = ("tcp", "shm", "ucx", "zmq")
KEYED = ("tcp, with keys", "shm, with keys", "zmq, with keys")  # sealed; memory of the two alone; CURVE


@contextlib.contextmanager
def server(devices: str, *options: str) -> Iterator[str]:
    """A daemon of our own; its address."""
    command = [sys.executable, "-m", "rgpu.server", "--devices", devices, "--port", "0", *options]
    with tempfile.TemporaryFile() as remarks:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=remarks)
        try:
            ready = line_of(process, 30)
            if not ready:
                remarks.seek(0)
                raise Unavailable(remarks.read().decode().strip().rpartition("\n")[2])
            yield ready.split("tcp://")[1].split()[0]
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()


@contextlib.contextmanager
def over(kind: str, native: Native) -> Iterator[bool]:
    """With a session over this kind of link; False where it is not possible here."""
    before, link = pool.get().settings, kind.partition(",")[0]
    with contextlib.ExitStack() as stack:
        possible, options = False, ["--links", link]
        try:
            if kind in KEYED:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                server_keys.init(folder / "keys")
                options += ["--keys", str(folder / "keys")]
            address = stack.enter_context(server(native.devices(1), *options))
            if kind in KEYED:
                _, token = server_keys.KeyRing(folder / "keys").create("bench", (parse_address(address),))
                tokens.save(token, folder / "bench.rgpu")
                os.environ["RGPU_TOKEN"] = str(folder / "bench.rgpu")
                stack.callback(os.environ.pop, "RGPU_TOKEN")
            cp.connect(address, link=link, upload_cache="off")  # what is measured is sent
            cp.ones(1).get()
            possible = True
        except (RgpuError, Unavailable) as error:
            print(f"{kind}: {error}", file=sys.stderr)
        yield possible
    cp.connect([str(address) for address in before.servers])


@contextlib.contextmanager
def connected(**settings: object) -> Iterator[None]:
    """With a new session on the same server that has these settings."""
    address = str(pool.get().devices[0].daemon.address)
    cp.connect(address, **settings)
    yield
    cp.connect(address)
