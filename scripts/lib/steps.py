"""Section ``training`` of scripts/bench: steps, element-wise programs, and steps with the server further away."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elementwise
import training
from anchors import line_of
from measuring import Row, in_turn, row, wall
from native import Native
from serving import connected

import rgpu as cp
from rgpu.client import pool, seat

ROOT = Path(__file__).resolve().parents[2]

STEPS, SMALL_STEPS = 20, 100  # of a sample
LESS, MORE = 40, 160  # of two whose difference is a sample
SIZES = 1 << 16, 1 << 20  # of arrays

_STEPS: dict[str, tuple] = {
    "MLP 64-512-512-10": (training.Mlp, 512, {}),
    "the same, its loss read each step": (training.Mlp, 512, {"reads": True}),
    "the same, a new batch uploaded each step": (training.Mlp, 512, {"uploads": True}),
    "MLP 64-32-32-10": (training.Mlp, 32, {}),
    "the same small one, its loss read each step": (training.Mlp, 32, {"reads": True}),
    "CNN": (training.Cnn, 0, {}),
}
_CHAINS = {"Black-Scholes": elementwise.options, "a step of Adam": elementwise.adam}


def train(quick: bool, native: Native) -> list[Row]:
    """The same source on NumPy or CuPy in process and through rgpu; on GPUs each command by itself, too: CuPy launches
    each kernel, and what repeats is where graphs can be faster."""
    if not native.gpu:
        return steps(quick, native) + chains(quick, native) + far(quick)
    rows = []
    for how, replay in {", eager": False, ", with replay": True}.items():
        with connected(replay=replay):
            rows += steps(quick, native, how) + chains(quick, native, how)
    return rows + far(quick)


def steps(quick: bool, native: Native, how: str = "") -> list[Row]:
    rows = []
    for name, (model, width, options) in _STEPS.items():
        pair = {
            "ours": training.runner(cp, model, width, **options),
            "native": training.runner(native.module, model, width, **options),
        }
        count = STEPS if width == 512 else SMALL_STEPS
        losses = [run(3) for run in pair.values()]
        if not native.agrees(*losses):
            raise AssertionError(f"{name}: {losses}")  # a fast wrong step is worth nothing
        timed = {
            side: functools.partial(lambda run, n: wall(lambda: run(n)) / n * 1e3, run, count)
            for side, run in pair.items()
        }
        found = in_turn(timed, 5 if quick else 15)
        rows.append(row("training", name + how, found["ours"], "ms", native.in_process, found["native"]))
    return rows


def chains(quick: bool, native: Native, how: str = "") -> list[Row]:
    """Programs of element-wise operations on large arrays, each run ended by a synchronization."""
    rows, waits = [], {"ours": pool.current_stream().sync, "native": native.wait}
    for name, program in _CHAINS.items():
        for count in SIZES:
            runs = {"ours": program(cp, count), "native": program(native.module, count)}
            results = zip(*(run() for run in runs.values()))
            if not all(native.agrees(a.get(), b.get() if native.gpu else b) for a, b in results):
                raise AssertionError(name)
            timed = {
                side: functools.partial(lambda run, wait: wall(lambda: (run(), wait())) * 1e3, run, waits[side])
                for side, run in runs.items()
            }
            found = in_turn(timed, 7 if quick else 25)
            title = f"{name}, {count:,} floats{how}"
            rows.append(row("training", title, found["ours"], "ms", native.in_process, found["native"]))
    return rows


def far(quick: bool) -> list[Row]:
    """The step of the larger network through a line between client and worker, of 0 to 30 ms, in turn; reading the
    last loss is the one round trip, and what longer runs do not take more of."""
    near, runs = training.runner(cp, training.Mlp, 512), 3 if quick else 7
    near(3)

    def step(run: Callable) -> float:
        return (wall(functools.partial(run, MORE)) - wall(functools.partial(run, LESS))) / (MORE - LESS) * 1e3

    base = [step(near) for _ in range(runs)]
    connect, lines = seat.link.connect, []

    def through_line(offered: list[str], *rest: Any, **named: Any) -> Any:
        (place,) = [uri.removeprefix("tcp://") for uri in offered if uri.startswith("tcp://")]
        source = [sys.executable, "-m", "tests.support.faultproxy", "--to", place]
        lines.append(subprocess.Popen(source, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT))
        return connect(["tcp://" + line_of(lines[-1], 20).split()[0]], *rest, **named)

    def at(run: Callable, rtt: int) -> float:
        for line in lines:
            line.stdin.write(f"{rtt / 2e3}\n".encode())
            line.stdin.flush()
        time.sleep(0.1)
        return step(run)

    address = str(pool.get().devices[0].daemon.address)
    os.environ["RGPU_LINK"] = "tcp"
    seat.link.connect = through_line
    try:
        cp.connect(address)
        run = training.runner(cp, training.Mlp, 512)
        run(3)
        found = in_turn({str(rtt): functools.partial(at, run, rtt) for rtt in (0, 1, 10, 30)}, runs)
    finally:
        seat.link.connect = connect
        del os.environ["RGPU_LINK"]
        cp.connect(address)
        for line in lines:
            line.terminate()
            line.wait(10)
            line.stdin.close()
            line.stdout.close()
    name = "MLP 64-512-512-10 at {} ms"
    here = found.pop("0")
    return [row("training", name.format(0), here, "ms", "without the line", base)] + [
        row("training", name.format(rtt), there, "ms", "the line at 0 ms", here) for rtt, there in found.items()
    ]
