"""Section ``start`` of scripts/bench: import, first use of a device, and memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Row, row
from native import Native

from rgpu.client import pool

_PROGRAM = """
import sys, time
began = time.perf_counter()
import {module}
imported = time.perf_counter() - began
began = time.perf_counter()
{use}
used = time.perf_counter() - began
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(imported, used, status["VmHWM"].split()[0])
"""


def start(quick: bool, native: Native) -> list[Row]:
    # An installed package has its bytecode; a checkout may be told to keep none.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["RGPU_SERVERS"] = str(pool.get().devices[0].daemon.address)
    alone = ("cupy", "cupy.ones(3).get()") if native.gpu else ("numpy", "numpy.ones(3)")

    def fresh(module: str, use: str) -> list[float]:
        command = [sys.executable, "-c", _PROGRAM.format(module=module, use=use)]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, env=environment)
        return [float(x) for x in done.stdout.split()]

    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as compiled:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        fresh("rgpu", "rgpu.ones(3).get()")  # leaves the bytecode
        for _ in range(3 if quick else 7):
            ours.append(fresh("rgpu", "rgpu.ones(3).get()"))
            theirs.append(fresh(*alone))
    columns, anchors = list(zip(*ours)), list(zip(*theirs))

    def ms(seconds: Any) -> list[float]:
        return [x * 1e3 for x in seconds]

    def mib(kib: Any) -> list[float]:
        return [x / 1024 for x in kib]

    first_use = ("CuPy's first answer", ms(anchors[1])) if native.gpu else ()
    return [
        row("start", "import", ms(columns[0]), "ms", f"import {alone[0]}", ms(anchors[0])),
        row("start", "connect, attach, first answer", ms(columns[1]), "ms", *first_use),
        row("start", "memory of a client", mib(columns[2]), "MiB", f"{native.name} alone", mib(anchors[2])),
        row("start", "memory of this session's worker", [worker_memory()], "MiB"),
    ]


def worker_memory() -> float:
    """MiB of the largest worker below this process."""
    sizes, parents = [0.0], {os.getpid()}
    for status in sorted(Path("/proc").glob("[0-9]*/status"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(fields["PPid"]) in parents:
                parents.add(int(status.parent.name))
                if b"rgpu.server.worker" in (status.parent / "cmdline").read_bytes():
                    sizes.append(int(fields["VmRSS"].split()[0]) / 1024)
    return max(sizes)
