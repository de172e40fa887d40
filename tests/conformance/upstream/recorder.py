"""Hooks of both pytest plugins: one JSON line for each test to $RGPU_CONFORMANCE_REPORT.

What the ledger excludes is not run, but counted. Must know nothing of rgpu: the plugin that puts
NumPy in its place uses it too.
"""

from __future__ import annotations

import json
import os
from typing import Any

import ledger


def write(**line: Any) -> None:
    with open(os.environ["RGPU_CONFORMANCE_REPORT"], "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(config: Any, items: list) -> None:
    known = ledger.load()
    out = [item for item in items if known.excludes(item.nodeid)]
    if not out:
        return
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":  # every worker collects the same
        for item in out:
            write(node=item.nodeid, outcome="excluded", seconds=0, message="")
    config.hook.pytest_deselected(items=out)
    gone = set(map(id, out))
    items[:] = [item for item in items if id(item) not in gone]


def pytest_runtest_logreport(report: Any) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return  # the controller sees every report
    if report.when != "call" and report.outcome == "passed":
        return
    outcome = "error" if report.outcome == "failed" and report.when != "call" else report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr or "")
    write(
        node=report.nodeid,
        outcome=outcome,
        seconds=round(report.duration, 3),
        message=message[-700:] if outcome in ("failed", "error") else "",
    )


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        write(node=report.nodeid, outcome="error", seconds=0, message=str(report.longrepr)[-600:])
