"""Sections ``issue`` and ``pipeline`` of scripts/bench: what small operations cost who issues them, and end to end."""

from __future__ import annotations

import functools
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import Row, in_turn, row
from native import Native

import rgpu as cp
from rgpu.client import pool
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

ISSUED = 2000  # operations of a sample
BURST, QUICK_BURST = 100_000, 20_000

_OPERATIONS = {
    "a + b": "a + b",
    "a + b, result kept": "kept.append(a + b)",
    "a + 1.0": "a + 1.0",
    "a += 1": "x += 1",
    "-a": "-a",
    "a[1:]": "a[1:]",
    "a.reshape(8, 8)": "a.reshape(8, 8)",
    "a.sum()": "a.sum()",
    "m @ n": "m @ n",
    "kernel launch": "double(a)",
}


def issue(quick: bool, native: Native) -> list[Row]:
    """What one asynchronous operation costs the thread that issues it. CuPy issues the same operations; NumPy, which
    computes at once, adds."""
    stream, runs = pool.current_stream(), 15 if quick else 60

    def names(xp: Any) -> dict[str, Any]:
        found = {"a": xp.ones(64), "b": xp.ones(64), "m": xp.ones((8, 8)), "n": xp.ones((8, 8))}
        if hasattr(xp, "ElementwiseKernel"):
            found["double"] = xp.ElementwiseKernel("float64 x", "float64 y", "y = x * 2", "bench_double")
        return found

    def cost(statement: str, arrays: dict[str, Any]) -> float:
        stream.sync()
        native.wait()
        timer = timeit.Timer(statement, "x = a", timer=time.thread_time, globals=arrays | {"kept": []})
        return timer.timeit(ISSUED) / ISSUED * 1e6

    ours, theirs = names(cp), names(native.module)
    beside = {name: name if native.gpu else "a + b" for name in _OPERATIONS}
    measured = {f"native {name}": functools.partial(cost, _OPERATIONS[name], theirs) for name in beside.values()}
    measured["loop"] = functools.partial(cost, "pass", ours)
    measured |= {name: functools.partial(cost, statement, ours) for name, statement in _OPERATIONS.items()}
    found = in_turn(measured, runs)
    empty = statistics.median(found.pop("loop"))
    net = {name: [x - empty for x in samples] for name, samples in found.items()}
    anchor = f"{native.name}'s {'own' if native.gpu else 'a + b'}"
    return [row("issue", name, net[name], "us", anchor, net[f"native {other}"]) for name, other in beside.items()]


def pipeline(quick: bool, native: Native) -> list[Row]:
    """Small operations a second, end to end, and what one costs the worker beyond NumPy itself."""
    count, alone, arrays = QUICK_BURST if quick else BURST, native.module.ones(64), []
    for device in range(min(4, cp.cuda.runtime.getDeviceCount())):
        with cp.cuda.Device(device):
            arrays.append(cp.ones(64))

    def local() -> float:
        began = time.perf_counter()
        for _ in range(count):
            alone + alone
        native.wait()
        return count / (time.perf_counter() - began)

    def remote(devices: int) -> float:
        began = time.perf_counter()
        for a, device in zip(arrays[:devices], range(devices)):
            with cp.cuda.Device(device):
                for _ in range(count // devices):
                    a + a
        for a in arrays[:devices]:
            a._stream.sync()
        return count / (time.perf_counter() - began)

    measured = {"native": local} | {str(n): functools.partial(remote, n) for n in sorted({1, len(arrays)})}
    found = in_turn(measured, 5 if quick else 9)
    scaled = {name: [x / 1e6 for x in samples] for name, samples in found.items()}
    anchor = scaled.pop("native")
    rows = [
        row("pipeline", f"a + b, {n} device(s)", samples, "M/s", native.in_process, anchor)
        for n, samples in scaled.items()
    ]
    return rows if native.leaves_out("pipeline: the worker's loop in this process") else rows + worker(quick)


def worker(quick: bool) -> list[Row]:
    """The worker's loop over one message of commands, in this process."""
    executor, count, host = Executor(CpuBackend(), lambda frames: None), 256, np.ones(64)
    add, total = BY_NAME["add"].id, BY_NAME["sum"].id
    executor.run([codec.pack([1, [ops.Put.encode(1, "<f8", (64,), host.tobytes())]])])
    handle = iter(range(10, 1 << 40)).__next__
    commands = {
        "a + b": lambda h: ops.Binary.encode(add, h, 1, 1),
        "a += 1": lambda h: ops.Inplace.encode(add, 1, (values.INT, 1)),
        "a.sum()": lambda h: ops.Call.encode(total, (h,), [(values.HANDLE, 1)], {}),
    }
    alone = {
        "a + b": lambda: host + host,
        "a += 1": lambda: np.add(host, 1, out=host, casting="same_kind"),
        "a.sum()": lambda: np.sum(host),
    }

    def remote(make: Callable[[int], tuple]) -> float:
        handles = [handle() for _ in range(count)]
        # Small arrays are freed together, as the client does it.
        message = [codec.pack([1, [*map(make, handles), ops.Free.encode(handles)]])]
        began = time.thread_time()
        executor.run(message)
        return (time.thread_time() - began) / count * 1e6

    def local(function: Callable[[], Any]) -> float:
        began = time.thread_time()
        for _ in range(count):
            function()
        return (time.thread_time() - began) / count * 1e6

    rows = []
    for name in commands:
        pair = {"ours": functools.partial(remote, commands[name]), "numpy": functools.partial(local, alone[name])}
        found = in_turn(pair, 15 if quick else 60)
        rows.append(row("pipeline", f"worker: {name}", found["ours"], "us", "NumPy's own", found["numpy"]))
    return rows
