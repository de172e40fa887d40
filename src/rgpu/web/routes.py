"""What each address means: the page and its files, REST, metrics, events. Read-only; no path of the host is opened
by a name from the network.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib import resources
from urllib.parse import parse_qs, urlsplit

from rgpu.web.board import Board

STALE_SECONDS = 5.0  # a daemon whose picture is older than this is not well
WATCH_SECONDS = 0.25  # how often a stream looks for a new picture
PING_SECONDS = 15.0

_JSON = "application/json"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/views.js": ("views.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_COOKIE = "rgpu_token"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """ValueError with a sentence for what is no request."""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise ValueError("this is not HTTP/1")
        if not parts[1].startswith("/"):
            raise ValueError("an address here begins with /")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or name.lower() in headers:
                raise ValueError("a header line has no meaning")
            headers[name.lower()] = value.strip()
        url = urlsplit(parts[1])
        return cls(parts[0], url.path, parse_qs(url.query), headers)


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=lambda: {"Cache-Control": "no-store"})
    stream: AsyncIterator[bytes] | None = None


def answer(request: Request, board: Board, token: str) -> Response:
    """Never raises for what a stranger may write."""
    if request.method not in ("GET", "HEAD"):
        return Response(405, b"this server is read-only\n", headers={"Allow": "GET, HEAD"})
    if request.path == "/healthz":
        return _health(board)
    if token and not _authorized(request, token):
        return Response(401, b"a token is needed: Authorization: Bearer ...\n", headers={"WWW-Authenticate": "Bearer"})
    if token and "token" in request.query:  # a link with the token in it: remembered, and out of the address bar
        cookie = f"{_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"
        return Response(302, headers={"Location": request.path, "Set-Cookie": cookie, "Cache-Control": "no-store"})
    if request.path in _FILES:
        name, kind = _FILES[request.path]
        return Response(200, _file(name), kind, {"Cache-Control": "no-cache"})
    if request.path == "/v1/events":
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Response(200, kind="text/event-stream", headers=headers, stream=_events(board))
    make = _TEXTS.get(request.path)
    if make is None:
        return Response(404, b"there is: / /healthz /metrics /v1/gpus /v1/sessions /v1/picture /v1/events\n")
    kind = "text/plain; version=0.0.4; charset=utf-8" if request.path == "/metrics" else _JSON
    return Response(200, make(board), kind)


_TEXTS: dict[str, Callable[[Board], bytes]] = {
    "/metrics": Board.metrics,
    "/v1/gpus": Board.gpus,
    "/v1/sessions": Board.sessions,
    "/v1/picture": Board.picture,
    "/v1/history": Board.history,
}


def _health(board: Board) -> Response:
    age = board.age
    well = age < STALE_SECONDS
    told = {"status": "ok" if well else "stale", "age": round(age, 3), "version": board.version}
    return Response(200 if well else 503, json.dumps(told).encode() + b"\n", _JSON)


def _authorized(request: Request, token: str) -> bool:
    shown = [request.headers.get("authorization", "").removeprefix("Bearer "), *request.query.get("token", ())]
    for part in request.headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == _COOKIE:
            shown.append(value)
    return any(hmac.compare_digest(one.encode(), token.encode()) for one in shown)


def _file(name: str) -> bytes:
    return resources.files("rgpu.web").joinpath("page", name).read_bytes()


async def _events(board: Board) -> AsyncIterator[bytes]:
    """Server-sent events: the history once, then each picture."""
    yield b"retry: 2000\n" + _event("history", board.history())
    seen, idle = -1, 0.0
    while True:
        if board.number != seen:
            seen, idle = board.number, 0.0
            yield _event("picture", board.picture())
        elif idle >= PING_SECONDS:
            idle = 0.0
            yield b": still here\n\n"  # so that a reader that is gone is noticed
        await asyncio.sleep(WATCH_SECONDS)
        idle += WATCH_SECONDS


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
