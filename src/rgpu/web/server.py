"""A small HTTP server for a few readers, in a thread of its own: GET and HEAD, one request a connection.

Everything a stranger can make it do is bounded: connections, the size and the time of a request, and how long a
slow reader is waited for. It never touches what it serves; `routes` decides what an address means.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rgpu.config import Address
from rgpu.errors import ConfigError
from rgpu.web import routes
from rgpu.web.board import Board
from rgpu.web.routes import Request, Response

log = logging.getLogger("rgpu.web")

CONNECTIONS = 64
HEAD_BYTES = 8192
HEAD_SECONDS = 5.0
SEND_SECONDS = 10.0  # for a reader to take what is in the way
BUFFER = 1 << 18

_REASONS = {200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
            405: "Method Not Allowed", 408: "Request Timeout", 413: "Content Too Large",
            431: "Request Header Fields Too Large", 503: "Service Unavailable"}  # fmt: skip

_SAFE = (
    "Connection: close\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "X-Frame-Options: DENY\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
)


class WebServer:
    """Serves ``board`` on an address until ``close``. ``token``: what readers must show; "" on loopback."""

    def __init__(self, host: str, port: int, board: Board, token: str = "") -> None:
        """OSError when the address cannot be had."""
        self._board, self._token = board, token
        self._socket = _listen(host, port)
        bound, self.port = self._socket.getsockname()[:2]
        self._local = ipaddress.ip_address(bound.partition("%")[0]).is_loopback
        self.url = f"http://[{bound}]:{self.port}/" if ":" in bound else f"http://{bound}:{self.port}/"
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task] = set()
        self._thread = threading.Thread(target=self._run, name="rgpu-web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it ended by itself
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            serving = self._loop.run_until_complete(
                asyncio.start_server(self._accept, sock=self._socket, limit=HEAD_BYTES)
            )
            self._loop.run_forever()
            serving.close()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        finally:
            self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._tasks.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        except Exception:
            log.exception("a request failed")
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=BUFFER)
        head_only = False
        if len(self._tasks) > CONNECTIONS:
            response = Response(503, b"too many connections\n")
        else:
            request, response = await self._request(reader)
            if request is not None:
                head_only = request.method == "HEAD"
                response = routes.answer(request, self._board, self._token)
        await _send(writer, _head(response))
        if head_only:
            return
        if response.stream is None:
            await _send(writer, response.body)
        else:
            await _stream(writer, response.stream)
        with contextlib.suppress(OSError):  # so that the reader gets the end before the connection goes
            writer.write_eof()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[Request | None, Response]:
        """The request, or what to say of it."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return None, Response(431, b"the request is too long\n")
        except asyncio.IncompleteReadError:
            return None, Response(400, b"the request is not complete\n")
        except TimeoutError:
            return None, Response(408, b"the request took too long\n")
        try:
            request = Request.parse(head)
        except ValueError as error:
            return None, Response(400, f"{error}\n".encode())
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            return None, Response(413, b"a request has no body here\n")
        if self._local and not _is_local(request.headers.get("host", "")):
            # A page of another site that points its own name at this host must not read this one.
            return None, Response(403, b"this server answers to localhost only\n")
        return request, Response(500)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(SEND_SECONDS):
        await writer.drain()


async def _stream(writer: asyncio.StreamWriter, events: AsyncIterator[bytes]) -> None:
    async for event in events:
        await _send(writer, event)
        if writer.transport.is_closing():
            return


def _head(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Error')}"]
    lines.append(f"Content-Type: {response.kind}")
    if response.stream is None:
        lines.append(f"Content-Length: {len(response.body)}")
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return ("\r\n".join(lines) + "\r\n" + _SAFE + "\r\n").encode("latin-1")


def _is_local(host: str) -> bool:
    """Whether a Host header names this machine's loopback: a name that rebinding cannot make its own."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(CONNECTIONS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def serve(address: Address, board: Board, token_file: str | None = None) -> WebServer:
    """Start serving; ConfigError with the remedy when that is impossible or would show the pool to strangers."""
    token = _read_token(token_file) if token_file else ""
    try:
        infos: list[Any] = socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
        local = all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)
        if not local and not token:
            raise ConfigError(
                f"--http {address} is refused: anybody who reaches it could see users, hosts and programs; "
                "bind loopback (--http 9400) and use an SSH tunnel, or ask readers for a token: --http-token-file FILE"
            )
        return WebServer(address.host, address.port, board, token)
    except OSError as error:
        raise ConfigError(f"--http {address}: cannot listen there: {error.strerror or error}") from None


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--http-token-file {path} cannot be read: {error}") from None
    if not re.fullmatch(r"[A-Za-z0-9._~-]{16,256}", token):
        raise ConfigError(
            f"--http-token-file {path}: a token is one line of 16 to 256 letters, digits, '.', '_', '~' or '-'; "
            "make one with: openssl rand -hex 32"
        )
    return token
