"""pytest plugin: CuPy's own tests with ``cupy`` bound to rgpu.

Loaded with ``-p cupy_on_rgpu`` by ``scripts/conformance``. Writes one JSON line for each test to
$RGPU_CONFORMANCE_REPORT. A test that passes but leaves an error on a device fails: errors that
nobody saw must not be lost between tests.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
import recorder
import stand_ins
from recorder import pytest_collection_modifyitems, pytest_collectreport, pytest_runtest_logreport  # noqa: F401

from rgpu import launch  # noqa: E402 - after the names below it are free

stand_ins.install(Path(os.environ["RGPU_CONFORMANCE_SDIST"]))
importlib.import_module("cupy._util")  # as CuPy does: tests name it without importing it


def pytest_collection_finish(session: Any) -> None:
    stand_ins.collecting = False


def pytest_sessionstart(session: Any) -> None:
    os.environ.update(launch.alias_environment(os.environ))  # for programs that tests start
    import cupy
    import cupyx.scipy.sparse  # noqa: F401 - a stand-in unless rgpu has it, before tests run
    import numpy

    if cupy.ndarray is numpy.ndarray or not cupy.ndarray.__module__.startswith("cupy"):
        pytest.exit("cupy is not bound to rgpu", returncode=3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    try:
        result = yield
    except BaseException:
        _drain()
        raise
    error = _drain()
    if error is not None:
        raise error
    return result


def _drain() -> BaseException | None:
    """Wait for every device of the pool; the first error left there. Lost sessions start anew."""
    from rgpu.client import pool

    first = None
    if pool._pool is None:
        return None
    for device in pool._pool.devices:
        while device.attached:
            try:
                device.stream.sync()
                break
            except Exception as error:
                first = first or error
                if device.stream.connection.failure is not None:
                    pool.reset()
    return first


def pytest_sessionfinish(session: Any) -> None:
    import rgpu

    issued, executed = _counted()
    stats = {key: value for key, value in rgpu.stats().items() if key != "devices"}
    stats.update(issued=issued, executed=executed)
    recorder.write(stats=stats, stood_in=sorted(stand_ins.given))


def _counted() -> tuple[int, int]:
    """Commands that this process issued in the sessions it still has, and those that the servers say
    they executed in them. Workers tell their daemon every second, on a busy machine
    later: waits until both agree, or 30 s."""
    from rgpu.client import pool
    from rgpu.smi import snapshot

    if pool._pool is None:
        return 0, 0
    _drain()
    live = [device for device in pool._pool.devices if device.attached]
    addresses = list({device.daemon.address for device in live})
    issued, executed, end = 0, -1, time.monotonic() + 30
    while executed != issued and time.monotonic() < end:
        issued = sum(pool.counted(device.stream).commands for device in live)  # freed arrays leave by themselves
        sessions = [s for server in snapshot.take(addresses) for d in server["devices"] for s in d["sessions"]]
        executed = sum(s["commands"] for s in sessions if s["pid"] == os.getpid())
        time.sleep(0.1)  # between two questions; nothing announces a worker's report
    return issued, executed
