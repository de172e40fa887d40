"""Section ``peers`` of scripts/bench, what a user might take instead: the same small work through RPyC, Ray, Dask.

Each peer is a program of its own, because some of them do not stop cleanly inside another. It prints figures as
JSON; a peer that is not installed, or does not start, is a note and no row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
from measuring import Row, row, wall
from native import Native

import rgpu as cp
from rgpu.client import pool

_MEASURE = """
import json, sys, time
import numpy as np

SMALL, LARGE = np.ones(64), np.ones(2 << 20)

def wall(function, times):
    function()
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times

def report(many, count, read, put, get):
    many(10)
    began = time.perf_counter()
    many(count)
    rate = count / (time.perf_counter() - began) / 1e6
    print(json.dumps({
        "rate": rate, "read": wall(read, 50) * 1e6,
        "up": LARGE.nbytes / wall(put, 3) / 1e9, "down": LARGE.nbytes / wall(get, 3) / 1e9,
    }), flush=True)
"""

_RPYC = """
import pickle, subprocess
import rpyc
SERVER = (
    "from rpyc.core.service import SlaveService; from rpyc.utils.server import ThreadedServer; "
    "server = ThreadedServer(SlaveService, hostname='127.0.0.1', port=0); "
    "print(server.port, flush=True); server.start()"
)
process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
try:
    there = rpyc.classic.connect("127.0.0.1", int(process.stdout.readline()))
    numbers, large = there.modules.numpy.ones(64), there.modules.numpy.ones(2 << 20)
    def many(n):
        for _ in range(n):
            numbers + numbers
    report(many, 300, lambda: bytes(numbers[:4].tobytes()), lambda: there.modules.pickle.loads(pickle.dumps(LARGE)),
           lambda: pickle.loads(there.modules.pickle.dumps(large)))
finally:
    process.kill()
    process.wait()
"""

_ACTOR = """
class Holder:
    def __init__(self):
        self.small, self.large = np.ones(64), np.ones(2 << 20)
    def add(self):
        self.small + self.small
    def read(self):
        return self.small[:4]
    def put(self, large):
        self.large = large
    def get(self):
        return self.large
"""

_RAY = """
import ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
try:
    actor = ray.remote(Holder).remote()
    def many(n):
        ray.get([actor.add.remote() for _ in range(n)])
    report(many, 1000, lambda: ray.get(actor.read.remote()), lambda: ray.get(actor.put.remote(LARGE)),
           lambda: ray.get(actor.get.remote()))
finally:
    ray.shutdown()
"""

_DASK = """
if __name__ == "__main__":
    from distributed import Client
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None, silence_logs=50) as client:
        actor = client.submit(Holder, actor=True).result()
        def many(n):
            for future in [actor.add() for _ in range(n)]:
                future.result()
        report(many, 300, lambda: actor.read().result(), lambda: actor.put(LARGE).result(),
               lambda: actor.get().result())
"""

PEERS = {"RPyC": ("rpyc", _RPYC), "Ray actor": ("ray", _ACTOR + _RAY), "Dask actor": ("distributed", _ACTOR + _DASK)}


def measure(name: str) -> dict[str, float] | str:
    """{'rate': M/s of small operations, 'read': us of one waiting for 4 numbers, 'up', 'down': GB/s of 16 MiB}, or
    why there is none."""
    module, program = PEERS[name]
    source = _MEASURE + program
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    check = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True)
    if check.returncode:
        return f"{name}: not installed (pip install {module})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120
        )
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return f"{name}: did not run ({type(error).__name__})"


def alternatives(quick: bool, native: Native) -> list[Row]:
    """Peers on small operations, a read, and 16 MiB; ours in the same run. Those that are not there are named."""
    if native.leaves_out("peers, which compute on the host"):
        return []
    a, host, stream, count = cp.ones(64), np.ones(2 << 20), pool.current_stream(), 20_000
    small, device = cp.ones(4), cp.asarray(host)

    def many() -> None:
        for _ in range(count):
            a + a
        stream.sync()

    def up() -> None:
        device.set(host)
        stream.sync()

    ours = {
        "rate": ("a + b", "M/s", count / wall(many) / 1e6),
        "read": ("read 4 numbers", "us", wall(small.get, 200) * 1e6),
        "up": ("16 MiB up", "GB/s", host.nbytes / wall(up, 5) / 1e9),
        "down": ("16 MiB down", "GB/s", host.nbytes / wall(device.get, 5) / 1e9),
    }
    rows = []
    for peer in PEERS:
        theirs = measure(peer)
        if isinstance(theirs, str):
            print(f"skipped: {theirs}", file=sys.stderr)
            continue
        for key, (name, unit, value) in ours.items():
            rows.append(row("peers", name, [value], unit, peer, [theirs[key]]))
    return rows
