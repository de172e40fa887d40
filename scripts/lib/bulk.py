"""Section ``bulk`` of scripts/bench: arrays of 64 KiB to 1 GiB to the device and back, over each kind of link."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from anchors import raw_tcp
from measuring import Row, in_turn, row, wall
from native import Native
from serving import KEYED, LINKS, over

import rgpu as cp
from rgpu.client import pool

SAMPLE_KIB, REPEATS = 16 << 10, 100  # a sample moves so much, in so many calls at most: one call measures a wake-up
PAUSED_KIB, PAUSE = (64, 1 << 10), 0.01  # where the wake-up is what is measured


def bulk(quick: bool, native: Native) -> list[Row]:
    """Uploads that have arrived, and downloads, in GB/s."""
    rows = []
    sizes = (64, 1 << 10, 16 << 10) if quick else (64, 1 << 10, 16 << 10, 256 << 10, 1 << 20)
    host = np.ones(sizes[-1] << 7)  # once: fresh pages cost as much as what is measured
    out = np.ones_like(host)
    for kind in (*LINKS, *KEYED):
        with over(kind, native) as possible, raw_tcp() as raw:
            for kib in sizes if possible else ():
                runs = 5 if quick else 11 if kib <= SAMPLE_KIB else 5 if kib < 1 << 20 else 3
                rows += _in_a_row(kind, kib, runs, Copies(kib, host, out, raw, native), native)
            for kib in PAUSED_KIB if possible else ():
                rows += _after_a_pause(kind, kib, 5 if quick else 15, Copies(kib, host, out, raw, native))
    return rows


class Copies:
    """The same bytes, from ``host`` or to ``out``, moved by each of those that are compared; ``nbytes`` in a call."""

    def __init__(self, kib: int, host: np.ndarray, out: np.ndarray, raw: tuple[Callable, ...], native: Native) -> None:
        host, out, stream = host[: kib << 7], out[: kib << 7], pool.current_stream()
        given, taken = memoryview(host).cast("B"), memoryview(out).cast("B")
        upload, download = raw
        self.nbytes = host.nbytes
        self.calls: dict[str, Callable[[], Any]] = _both_ways("ours", cp.asarray(host), host, out, stream.sync)
        self.calls |= {"raw TCP up": lambda: upload(given), "raw TCP down": lambda: download(taken)}
        self.calls["memcpy"] = lambda: np.copyto(out, host)
        if native.gpu:  # from and to pageable memory, as ours
            array = native.module.asarray(host)
            self.calls |= _both_ways(native.in_process, array, host, out, native.wait)


def _both_ways(who: str, array: Any, host: np.ndarray, out: np.ndarray, wait: Callable[[], Any]) -> dict[str, Callable]:
    def up() -> None:
        array.set(host)
        wait()

    return {f"{who} up": up, f"{who} down": lambda: array.get(out=out)}


def _in_a_row(kind: str, kib: int, runs: int, copies: Copies, native: Native) -> list[Row]:
    """Calls back to back; every sample of every row moves as much."""
    repeats = max(1, min(REPEATS, SAMPLE_KIB // kib))
    rates = {
        name: functools.partial(lambda call: copies.nbytes / wall(call, repeats) / 1e9, call)
        for name, call in copies.calls.items()
    }
    found, rows = in_turn(rates, runs), []
    for way in ("up", "down"):
        anchors = {"raw TCP": f"raw TCP {way}", "memcpy": "memcpy"}
        if native.gpu:
            anchors[native.in_process] = f"{native.in_process} {way}"
        ours = found[f"ours {way}"]
        rows += [row("bulk", f"{kind}: {_size(kib)} {way}", ours, "GB/s", a, found[key]) for a, key in anchors.items()]
    return rows


def _after_a_pause(kind: str, kib: int, runs: int, copies: Copies) -> list[Row]:
    """Single calls, each after a time in which nobody did anything."""

    def rate(call: Callable[[], Any]) -> float:
        time.sleep(PAUSE)
        return copies.nbytes / wall(call) / 1e9

    names = [f"{who} {way}" for who in ("ours", "raw TCP") for way in ("up", "down")]
    found = in_turn({name: functools.partial(rate, copies.calls[name]) for name in names}, runs)
    return [
        row("bulk", f"{kind}: {_size(kib)} {way}, after a pause of {PAUSE * 1e3:.0f} ms", found[f"ours {way}"], "GB/s",
            "raw TCP", found[f"raw TCP {way}"])
        for way in ("up", "down")
    ]  # fmt: skip


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
