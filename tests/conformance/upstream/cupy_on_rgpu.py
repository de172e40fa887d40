"""pytest plugin: CuPy's own tests with ``cupy`` bound to rgpu.

Loaded with ``-p cupy_on_rgpu`` by ``scripts/conformance``. Writes one JSON line for each test to
$RGPU_CONFORMANCE_REPORT. A test that passes but leaves an error on a device fails: errors that
nobody saw must not be lost between tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import recorder
import stand_ins
from recorder import pytest_collection_modifyitems, pytest_collectreport, pytest_runtest_logreport  # noqa: F401

stand_ins.install(Path(os.environ["RGPU_CONFORMANCE_SDIST"]))


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


def pytest_sessionfinish(session: Any) -> None:
    if not os.environ.get("PYTEST_XDIST_WORKER") and hasattr(session.config, "workerinput"):
        return
    import rgpu

    recorder.write(stats={k: v for k, v in rgpu.stats().items() if k != "devices"}, stood_in=sorted(stand_ins.given))
