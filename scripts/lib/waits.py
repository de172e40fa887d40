"""Sections ``trips`` and ``waiting`` of scripts/bench: how often a program waits for an answer, and how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from anchors import raw_tcp, raw_zmq
from measuring import Row, in_turn, row, wall
from native import Native
from serving import KEYED, LINKS, over

import rgpu as cp
from rgpu.client import control, pool


def round_trips(quick: bool, native: Native) -> list[Row]:
    """Times the client waits for an answer, by what ``rgpu.stats()`` counts (which asks a GPU's worker itself)."""

    def counted(function: Callable[[], Any]) -> list[float]:
        counters, counts = pool.current_stream().counters, []
        for _ in range(3):
            before = counters.round_trips
            function()
            counts.append(float(counters.round_trips - before))
        return counts

    def chain() -> None:
        x = cp.ones(64)
        for _ in range(1000):
            x = x + 1
        x.get()

    asked = 0
    ask = control.DaemonClient._ask

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal asked
        asked += 1
        return ask(*args, **kwargs)

    address, control.DaemonClient._ask = str(pool.get().devices[0].daemon.address), counting
    try:
        cp.connect(address)
        cp.ones(1)
    finally:
        control.DaemonClient._ask = ask
    step = training_step()
    step()  # what has to be learned once
    return [
        row("round trips", "1,000 chained operations, then a read", counted(chain), ""),
        row("round trips", "to connect and to lease a device", [float(asked)], ""),
        row("round trips", "a training step that reads nothing", counted(step), ""),
        row("round trips", "a training step that reads its loss", counted(lambda: float(step())), ""),
    ]


def training_step() -> Callable[[], Any]:
    """One step of a small network, its loss still on the device."""
    rng = np.random.default_rng(0)
    x, y = cp.asarray(rng.random((128, 64))), cp.asarray(np.eye(10)[rng.integers(0, 10, 128)])
    w1, w2 = cp.asarray(rng.normal(0, 0.1, (64, 64))), cp.asarray(rng.normal(0, 0.1, (64, 10)))

    def step() -> Any:
        nonlocal w1, w2
        hidden = cp.maximum(x @ w1, 0)
        scores = hidden @ w2
        scores = cp.exp(scores - scores.max(axis=1, keepdims=True))
        chances = scores / scores.sum(axis=1, keepdims=True)
        loss = -(y * cp.log(chances + 1e-9)).sum() / 128
        slope = (chances - y) / 128
        below = (slope @ w2.T) * (hidden > 0)
        w2 -= 0.1 * (hidden.T @ slope)
        w1 -= 0.1 * (x.T @ below)
        return loss

    return step


def waiting(quick: bool, native: Native) -> list[Row]:
    """The read of a tiny array, from call to value, over each kind of link."""
    rows, memory, repeats, out = [], memoryview(bytearray(64)), 50, np.empty(4)

    def reads(a: Any, sync: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
        found = {"read 4 numbers": lambda: a.get(out=out), "synchronize": sync}
        return found | {"item()": a[:1].item} if native.gpu else found

    for kind in (*LINKS, *KEYED):
        with over(kind, native) as possible, raw_tcp() as (_, download), raw_zmq() as ping:
            if not possible:
                continue
            calls = {"tcp": lambda: download(memory), "zmq": ping}
            ours = reads(cp.ones(4), pool.current_stream().sync)
            alone = reads(native.module.ones(4), native.wait) if native.gpu else {}
            calls |= ours | {f"native {name}": call for name, call in alone.items()}
            found = in_turn(
                {name: lambda call=call: wall(call, repeats) * 1e6 for name, call in calls.items()}, 15 if quick else 60
            )
        for name in ours:
            anchors = {"raw TCP": "tcp"}
            if name == "read 4 numbers":
                anchors["raw DEALER/ROUTER"] = "zmq"
            if native.gpu:
                anchors[native.in_process] = f"native {name}"
            rows += [row("waiting", f"{kind}: {name}", found[name], "us", a, found[key]) for a, key in anchors.items()]
    return rows
