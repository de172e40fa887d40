"""An etcd client over its JSON gateway (API v3), with the standard library: keys, leases, transactions, watches.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rgpu.config import registry_members
from rgpu.errors import RegistryUnavailable


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))  # a client reads those of all servers


def _end(prefix: str) -> str:
    """The end of the range of all keys with an ASCII prefix."""
    return _b64(prefix[:-1] + chr(ord(prefix[-1]) + 1))


@dataclass(frozen=True)
class Entry:
    """A key's value with the revisions of its first and its last writing."""

    value: Any
    created: int
    modified: int


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
        return {key: entry.value for key, entry in self.snapshot(prefix)[1].items()}

    def snapshot(self, prefix: str) -> tuple[int, dict[str, Entry]]:
        """The same with revisions, and the revision at which all of it was so."""
        answer = self._ask("kv/range", {"key": _b64(prefix), "range_end": _end(prefix)})
        with self._understood():
            found = dict(filter(None, map(_pair, answer.get("kvs", ()))))
            return int(answer.get("header", {}).get("revision", 0)), found

    def put(self, key: str, value: Any, lease: int) -> None:
        """Write a key that vanishes with a lease."""
        self._ask("kv/put", {"key": _b64(key), "value": _b64(_text(value)), "lease": str(lease)})

    def transact(
        self, unchanged: Mapping[str, int], put: Mapping[str, Any], lease: int | None = 0, delete: str = ""
    ) -> int:
        """Write all of ``put`` and take out ``delete`` if every key of ``unchanged`` still has the revision of its last
        writing (0: does not exist): the revision at which that was so, or 0 when nothing was done. ``lease`` None
        leaves each key, which must exist, under the lease it has."""
        keep = {"ignore_lease": True} if lease is None else {"lease": str(lease)}
        operations = [
            {"request_put": {"key": _b64(key), "value": _b64(_text(value)), **keep}} for key, value in put.items()
        ]
        if delete:
            operations.append({"request_delete_range": {"key": _b64(delete)}})
        compare = [
            {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in unchanged.items()
        ]
        answer = self._ask("kv/txn", {"compare": compare, "success": operations})
        with self._understood():
            return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def watch(self, prefix: str, revision: int, opened: Watches) -> Iterator[tuple[int, dict[str, Entry | None]]]:
        """What is written from a revision on, as it happens: the revision with the keys that changed (None: taken out).
        Ends when ``opened`` is closed; RegistryUnavailable when the connection ends, or so much is no longer known."""
        request = {"key": _b64(prefix), "range_end": _end(prefix), "start_revision": str(revision)}
        member = self._members[0]
        connection = http.client.HTTPConnection(member.host, member.port, timeout=self.timeout)
        try:
            if not opened.add(connection):
                return
            text = json.dumps({"create_request": request})
            connection.request("POST", "/v3/watch", text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            _alive(connection.sock)
            while line := response.readline():
                result = json.loads(line)["result"]
                if result.get("canceled"):
                    raise RegistryUnavailable(f"{self.url} no longer knows revision {revision}")
                if result.get("events"):
                    yield int(result["header"]["revision"]), dict(filter(None, map(_event, result["events"])))
            raise ConnectionResetError("the connection ended")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, http.client.HTTPException) as error:
            if opened.closed:
                return
            self._turn_to_next(member)
            raise RegistryUnavailable(f"the registry {self.url} cannot be used ({member}: {_why(error)})") from None
        finally:
            connection.close()

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
                        self._turn_to_next(member)
                        if len(failures) == len(self._members):
                            break
                    continue
                if status == 200:
                    return answer
                if status == 404:
                    raise _Missing(f"{self.url}: not found: {answer.get('error', path)}")
                self._disconnect()
                failures.append(f"{member}: {answer.get('error', status)}")  # it has no leader, it is full, ...
                self._turn_to_next(member)
                if len(failures) == len(self._members):
                    break
        raise RegistryUnavailable(
            f"the registry {self.url} cannot be used ({'; '.join(failures)}); check that etcd runs there and "
            "RGPU_REGISTRY, or name the servers in RGPU_SERVERS. Sessions and leases that there are go on"
        )

    def _turn_to_next(self, member: Any) -> None:
        """One that failed is asked last from now on."""
        if self._members[0] == member:
            self._members.append(self._members.pop(0))

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


class Watches:
    """The connection of a watch, so that another thread can end it."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self.closed = False

    def add(self, connection: http.client.HTTPConnection) -> bool:
        self._connection = connection
        return not self.closed

    def close(self) -> None:
        self.closed = True
        sock = self._connection and self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _alive(sock: socket.socket) -> None:
    """A watch may be silent for hours; a member whose host is gone is noticed within seconds by the system."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _pair(pair: dict) -> tuple[str, Entry] | None:
    key = base64.b64decode(pair["key"]).decode(errors="replace")
    created, modified = int(pair.get("create_revision", 0)), int(pair.get("mod_revision", 0))
    try:
        return key, Entry(json.loads(base64.b64decode(pair.get("value", ""))), created, modified)
    except ValueError:  # not written by us
        return None


def _event(event: dict) -> tuple[str, Entry | None] | None:
    if event.get("type", "PUT") == "DELETE":
        return base64.b64decode(event["kv"]["key"]).decode(errors="replace"), None
    return _pair(event["kv"])


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
