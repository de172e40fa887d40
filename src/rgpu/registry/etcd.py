"""An etcd client over its JSON gateway (API v3), with the standard library: keys and leases.

Knows texts, nothing of devices. Each question goes to the first member that answers; a registry without one is
RegistryUnavailable, never a wait without end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
from typing import Any

from rgpu.config import registry_members
from rgpu.errors import RegistryUnavailable


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _end(prefix: str) -> str:
    """The end of the range of all keys with an ASCII prefix."""
    return _b64(prefix[:-1] + chr(ord(prefix[-1]) + 1))


class _Missing(RegistryUnavailable):
    """etcd knows no such lease (or it is no etcd)."""


class Etcd:
    """``url``: etcd://host:port,host:port. Thread-safe; connects at the first question and again after a failure.

    ``timeout``: seconds that one member may be silent. Every method raises RegistryUnavailable.
    """

    def __init__(self, url: str, timeout: float = 3.0) -> None:
        self.url, self.timeout = url, timeout
        self._members = list(registry_members(url))
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Etcd {self.url}>"

    def read(self, prefix: str) -> dict[str, Any]:
        """The values of all keys with a prefix, by key; what is no JSON is left out."""
        answer = self._ask("kv/range", {"key": _b64(prefix), "range_end": _end(prefix)})
        found = {}
        with self._understood():
            for pair in answer.get("kvs", ()):
                key = base64.b64decode(pair["key"]).decode(errors="replace")
                with contextlib.suppress(ValueError):  # not written by us
                    found[key] = json.loads(base64.b64decode(pair.get("value", "")))
        return found

    def put(self, key: str, value: Any, lease: int) -> None:
        """Write a key that vanishes with a lease."""
        self._ask("kv/put", {"key": _b64(key), "value": _b64(json.dumps(value)), "lease": str(lease)})

    def lease(self, seconds: int) -> int:
        """A lease of etcd's: keys under it vanish when it is not kept for so long."""
        answer = self._ask("lease/grant", {"TTL": str(seconds)})
        with self._understood():
            return int(answer["ID"])

    def keep(self, lease: int) -> bool:
        """Once more its time; False when it is over."""
        answer = self._ask("lease/keepalive", {"ID": str(lease)})
        with self._understood():
            return int(answer["result"].get("TTL", 0)) > 0

    def revoke(self, lease: int) -> None:
        """End it with its keys; harmless when it is over."""
        with contextlib.suppress(_Missing):
            self._ask("lease/revoke", {"ID": str(lease)})

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # Asking

    def _ask(self, path: str, body: dict) -> dict:
        text, failures = json.dumps(body), []
        with self._lock:
            for _ in range(len(self._members) + 1):  # one more: a connection that was kept may have ended meanwhile
                kept, member = self._connection is not None, self._members[0]
                try:
                    status, answer = self._exchange(path, text)
                except (OSError, ValueError, http.client.HTTPException) as error:
                    self._disconnect()
                    if not kept:
                        failures.append(f"{member}: {_why(error)}")
                        self._members.append(self._members.pop(0))  # asked last from now on
                        if len(failures) == len(self._members):
                            break
                    continue
                if status == 200:
                    return answer
                if status == 404:
                    raise _Missing(f"{self.url}: not found: {answer.get('error', path)}")
                self._disconnect()
                failures.append(f"{member}: {answer.get('error', status)}")  # it has no leader, it is full, ...
                self._members.append(self._members.pop(0))
                if len(failures) == len(self._members):
                    break
        raise RegistryUnavailable(
            f"the registry {self.url} cannot be used ({'; '.join(failures)}); check that etcd runs there and "
            "RGPU_REGISTRY, or name the servers in RGPU_SERVERS. Sessions and leases that there are go on"
        )

    def _exchange(self, path: str, text: str) -> tuple[int, dict]:
        if self._connection is None:
            member = self._members[0]
            self._connection = http.client.HTTPConnection(member.host, member.port, timeout=self.timeout)
        self._connection.request("POST", f"/v3/{path}", text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        if not isinstance(answer, dict):
            raise ValueError("this is not etcd's answer")
        return response.status, answer

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _understood(self):
        """What another service at that address answers is no etcd's."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RegistryUnavailable(f"{self.url} does not answer as etcd does; check RGPU_REGISTRY") from None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, json.JSONDecodeError):
        return "this is not etcd's answer"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
