"""What the web server shows: the latest picture of the servers and a bounded history of every device.

Published by one thread (the daemon's, or the one that asks a pool), read by another. A picture is never changed
after it was published; what is made of it (JSON) is made by the reader, so the daemon's loop pays next to nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rgpu.web import metrics

SECONDS = 600  # of history
POINTS = 240_000  # of all devices together
LOOKED_SECONDS = 120.0  # after which a reader is thought to have gone: longer than scrapes are apart
SERIES = ("utilization", "memory_used", "power", "temperature")


class Board:
    """``publish`` from one thread; everything else from any."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.published = 0.0  # on the monotonic clock
        self.number = 0
        self._servers: Sequence[dict[str, Any]] = ()
        self._time = time.time()
        self._history: deque[tuple[float, dict[str, tuple]]] = deque(maxlen=SECONDS)
        self._texts: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._read = -LOOKED_SECONDS  # when somebody read last, on the monotonic clock

    def looked_at(self) -> bool:
        """Whether somebody reads what is published."""
        return time.monotonic() - self._read < LOOKED_SECONDS

    def publish(self, servers: Sequence[dict[str, Any]]) -> None:
        """Take over the servers' descriptions (as ``rgpu-smi --json`` has them); nobody may change them any more."""
        now = time.time()
        point = {
            device_key(server, device): tuple(device.get(name) for name in SERIES)
            for server in servers
            for device in server["devices"]
        }
        with self._lock:
            self._servers, self._time = servers, now
            self._history.append((now, point))
            while len(self._history) > 2 and len(self._history) * len(point) * len(SERIES) > POINTS:
                self._history.popleft()
            self._texts.clear()
            self.number += 1
            self.published = time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the last picture; the daemon publishes every second."""
        return time.monotonic() - self.published

    def picture(self) -> bytes:
        """``{"rgpu_version", "time", "servers"}``: what ``rgpu-smi --json`` prints."""
        return self._text("picture", lambda: _json(self._described()))

    def gpus(self) -> bytes:
        """One entry a device, with its server; without sessions."""
        return self._text("gpus", lambda: _json({"gpus": [d for _, d in self._devices()]}))

    def sessions(self) -> bytes:
        """One entry a session, with its server and device."""
        return self._text("sessions", lambda: _json({"sessions": self._sessions()}))

    def metrics(self) -> bytes:
        return self._text("metrics", lambda: metrics.text(self._servers).encode())

    def history(self) -> bytes:
        """``{"times": [...], "devices": {key: {series: [...]}}}``; a time at which a device was not there has null."""
        with self._lock:
            points = list(self._history)
        keys = dict.fromkeys(key for _, point in points for key in point)
        none = (None,) * len(SERIES)
        devices = {
            key: dict(zip(SERIES, map(list, zip(*(point.get(key, none) for _, point in points))), strict=True))
            for key in keys
        }
        return _json({"times": [round(moment, 2) for moment, _ in points], "devices": devices})

    def _text(self, name: str, make: Any) -> bytes:
        """Made once for each picture, however many read it."""
        self._read = time.monotonic()
        with self._lock:
            text = self._texts.get(name)
            if text is None:
                text = self._texts[name] = make()
            return text

    def _described(self) -> dict[str, Any]:
        return {"rgpu_version": self.version, "time": self._time, "servers": self._servers}

    def _devices(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        found = []
        for server in self._servers:
            for device in server["devices"]:
                shown = {name: value for name, value in device.items() if name != "sessions"}
                found.append((device, {"server": server.get("name"), "sessions": len(device["sessions"]), **shown}))
        return found

    def _sessions(self) -> list[dict[str, Any]]:
        return [
            {"server": shown["server"], "device": device["index"], "uuid": device.get("uuid"), **session}
            for device, shown in self._devices()
            for session in device["sessions"]
        ]


def device_key(server: dict[str, Any], device: dict[str, Any]) -> str:
    """The same device over time, also when servers come and go."""
    return f"{server.get('address') or server.get('name')}/{device['index']}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
