"""pytest plugin: CuPy's own tests with ``cupy`` bound to rgpu.

Loaded with ``-p cupy_on_rgpu`` by ``scripts/conformance``. Writes one JSON line for each test to
$RGPU_CONFORMANCE_REPORT. A test that passes but leaves an error on a device fails: errors that
nobody saw must not be lost between tests.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import stand_ins

stand_ins.install(Path(os.environ["RGPU_CONFORMANCE_SDIST"]))


def _write(**line: Any) -> None:
    with open(os.environ["RGPU_CONFORMANCE_REPORT"], "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: Any) -> None:
    stand_ins.collecting = False


def pytest_sessionstart(session: Any) -> None:
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


def pytest_runtest_logreport(report: Any) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return  # the controller sees every report
    if report.when != "call" and report.outcome == "passed":
        return
    outcome = "error" if report.outcome == "failed" and report.when != "call" else report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "skipped" if report.outcome == "skipped" else outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr or "")
    _write(
        node=report.nodeid,
        outcome=outcome,
        seconds=round(report.duration, 3),
        message=message[-700:] if outcome in ("failed", "error") else "",
    )


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write(node=report.nodeid, outcome="error", seconds=0, message=str(report.longrepr)[-600:])


def pytest_sessionfinish(session: Any) -> None:
    if not os.environ.get("PYTEST_XDIST_WORKER") and hasattr(session.config, "workerinput"):
        return
    import rgpu

    _write(stats={k: v for k, v in rgpu.stats().items() if k != "devices"}, stood_in=sorted(stand_ins.given))
