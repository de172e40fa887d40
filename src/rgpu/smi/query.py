"""`--query-gpu` and `--query-compute-apps`: comma-separated values as nvidia-smi writes them, or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rgpu.smi import fields
from rgpu.smi.fields import Field, Row


class BadQuery(ValueError):
    """A field or a format without a meaning; ``plain``: the message is nvidia-smi's, which scripts may look for."""

    def __init__(self, message: str, plain: bool = False) -> None:
        super().__init__(message)
        self.plain = plain


class Query:
    """What was asked for, checked once; ``lines`` answers it as often as wanted."""

    def __init__(self, what: str, names: str, form: str | None) -> None:
        """``what``: "gpu" or "compute-apps"."""
        self._apps = what == "compute-apps"
        table = {name: field for field in (fields.APPS if self._apps else fields.GPU) for name in field.names.split()}
        wanted = [name.strip() for name in names.split(",")]
        for name in wanted:
            if name not in table:
                raise BadQuery(f'Field "{name}" is not a valid field to query.\n', plain=True)
        self._fields = [table[name] for name in wanted]
        parts = [part.strip() for part in form.split(",")] if form else []
        if parts[:1] not in (["csv"], ["json"]) or set(parts[1:]) - {"noheader", "nounits"}:
            raise BadQuery(
                f"--query-{what} needs a format: --format=csv[,noheader][,nounits] or --format=json, not {form!r}."
            )
        self._json = parts[0] == "json"
        self._header, self._units = "noheader" not in parts, "nounits" not in parts

    def text(self, servers: list[dict[str, Any]], now: float | None = None, first: bool = True) -> str:
        """``first``: with the header, which a loop shows once."""
        rows = [
            [_cell(field, row, self._units and not self._json) for field in self._fields]
            for row in _rows(servers, self._apps, time.time() if now is None else now)
        ]
        if self._json:
            names = [field.names.split()[0] for field in self._fields]
            return json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2)
        head = [", ".join(_title(field, self._units) for field in self._fields)] if self._header and first else []
        return "\n".join([*head, *(", ".join(row) for row in rows)])


def _rows(servers: list[dict[str, Any]], apps: bool, now: float) -> Iterator[Row]:
    for server in servers:
        for device in server["devices"]:
            if apps:
                yield from (Row(servers, server, device, now, session) for session in device["sessions"])
            else:
                yield Row(servers, server, device, now)


def _title(field: Field, units: bool) -> str:
    name = field.names.split()[0]
    return f"{name} [{field.unit}]" if field.unit and units else name


def _cell(field: Field, row: Row, units: bool) -> str:
    value = field.value(row)
    if value is None or value == "":
        return field.missing
    if isinstance(value, float):
        value = f"{value:.{field.digits}f}"
    text = str(value).replace(",", ";")  # a name with a comma must not become two cells
    return f"{text} {field.unit}" if field.unit and units else text


def explain(what: str) -> str:
    """`--help-query-gpu` and `--help-query-compute-apps`."""
    table: Sequence[Field] = fields.APPS if what == "compute-apps" else fields.GPU
    lines = [f'List of valid properties to query for the switch "--query-{what}":', ""]
    for field in table:
        unit = f" [{field.unit}]" if field.unit else ""
        lines += [" or ".join(f'"{name}"' for name in field.names.split()), field.about + unit, ""]
    return "\n".join(lines)
