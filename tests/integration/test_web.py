"""The web face of a daemon: health, metrics, REST, events; what strangers cannot do to it."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from rgpu.config import parse_http
from rgpu.errors import ConfigError
from rgpu.web import Board, WebServer, serve
from rgpu.web import server as web_server
from tests.support.daemons import Daemon, Talk
from tests.support.waiting import wait_until

DEVICE = {"index": 0, "name": "GPU", "memory_total": 8, "memory_used": 2, "utilization": 5, "sessions": []}
TOKEN = "a-token-of-24-characters"


@pytest.fixture
def board():
    made = Board("0.1.0")
    made.publish([{"name": "gpu1", "address": "gpu1:1", "devices": [DEVICE]}])
    return made


@pytest.fixture
def page(board):
    server = WebServer("127.0.0.1", 0, board)
    yield server
    server.close()


def ask(port, path, method="GET", **headers):
    """Status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def raw(port, data, close=True):
    with socket.create_connection(("127.0.0.1", port), 10) as peer:
        peer.sendall(data)
        if close:
            peer.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := peer.recv(65536):
            answer += chunk
        return answer


def test_a_daemon_shows_itself():
    with Daemon("--devices", "cpu:2", "--http", "0", "--prestart", "0") as daemon:
        url = daemon.client.snapshot()["page"]
        port = urlsplit(url).port
        talk = Talk(daemon.client.attach(1))
        wait_until(lambda: json.loads(ask(port, "/v1/sessions")[2])["sessions"])
        (session,) = json.loads(ask(port, "/v1/sessions")[2])["sessions"]
        assert (session["server"], session["device"], session["pid"]) == ("test", 1, os.getpid())
        gpus = json.loads(ask(port, "/v1/gpus")[2])["gpus"]
        assert [(gpu["index"], gpu["sessions"]) for gpu in gpus] == [(0, 0), (1, 1)]
        status, headers, body = ask(port, "/healthz")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        status, headers, body = ask(port, "/metrics")
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"rgpu_sessions{" in body and b"DCGM_FI_DEV_FB_USED{" in body
        assert talk.lease.session.hex().encode() not in ask(port, "/v1/picture")[2]  # the id is the key to the session
        talk.bye()
        assert daemon.stop() == 0


def test_a_daemon_that_hangs_is_not_well(page, board, monkeypatch):
    assert ask(page.port, "/healthz")[0] == 200
    board.published = time.monotonic() - 60
    status, _, body = ask(page.port, "/healthz")
    assert (status, json.loads(body)["status"]) == (503, "stale")


def test_events_bring_the_history_and_then_every_picture(page, board):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/v1/events")
    stream = connection.getresponse()
    assert stream.getheader("Content-Type") == "text/event-stream"

    def event():
        lines = []
        while line := stream.readline().strip():
            lines.append(line.decode())
        fields = dict(line.split(": ", 1) for line in lines)
        return fields["event"], json.loads(fields["data"])

    name, history = event()
    assert (name, list(history["devices"])) == ("history", ["gpu1:1/0"])
    assert history["devices"]["gpu1:1/0"]["utilization"] == [5]
    assert event()[1]["servers"][0]["name"] == "gpu1"
    board.publish([{"name": "gpu2", "address": "gpu2:1", "devices": []}])
    assert event()[1]["servers"][0]["name"] == "gpu2"
    stream.close()
    connection.close()


def test_history_is_bounded():
    board = Board("0")
    many = [{"name": "s", "address": "s", "devices": [DEVICE | {"index": i} for i in range(1000)]}]
    for _ in range(80):
        board.publish(many)
    told = json.loads(board.history())
    assert 2 <= len(told["times"]) <= 60
    assert all(len(series["utilization"]) == len(told["times"]) for series in told["devices"].values())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /page/app.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET //app.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /v1/gpus HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /", 400),
    ],
)
def test_requests_of_all_kinds(page, request_bytes, status):
    answer = raw(page.port, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert ask(page.port, "/healthz")[0] == 200


def test_a_request_that_never_ends_costs_its_own_connection(page, monkeypatch):
    monkeypatch.setattr(web_server, "HEAD_SECONDS", 0.2)
    assert raw(page.port, b"GET / HTTP/1.1\r\n", close=False).startswith(b"HTTP/1.1 408 ")


def test_many_connections_are_refused_and_let_in_again(page, monkeypatch):
    monkeypatch.setattr(web_server, "CONNECTIONS", 4)
    idle = [socket.create_connection(("127.0.0.1", page.port), 10) for _ in range(8)]
    try:
        wait_until(lambda: ask(page.port, "/healthz", Host="localhost")[0] == 503)
    finally:
        for peer in idle:
            peer.close()
    wait_until(lambda: ask(page.port, "/healthz", Host="localhost")[0] == 200)


def test_a_reader_that_does_not_read_is_left(page, board, monkeypatch):
    monkeypatch.setattr(web_server, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(web_server, "BUFFER", 1)
    monkeypatch.setattr("rgpu.web.routes.WATCH_SECONDS", 0.01)
    big = [{"name": "x" * 4_000_000, "address": "s", "devices": []}]
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", page.port))
    peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_until(lambda: page._tasks)
    board.publish(big)
    wait_until(lambda: not page._tasks)
    peer.close()
    assert ask(page.port, "/healthz")[0] == 200


def test_head_has_no_body(page):
    status, headers, body = ask(page.port, "/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 300


def test_with_a_token(board):
    page = WebServer("127.0.0.1", 0, board, TOKEN)
    try:
        assert ask(page.port, "/v1/gpus")[0] == 401
        assert ask(page.port, "/v1/gpus", Authorization="Bearer wrong-token")[0] == 401
        assert ask(page.port, "/v1/gpus", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(page.port, "/healthz")[0] == 200
        status, headers, _ = ask(page.port, f"/?token={TOKEN}")
        assert (status, headers["location"]) == (302, "/")
        assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
        assert ask(page.port, "/", Cookie=headers["set-cookie"].split(";")[0])[0] == 200
    finally:
        page.close()


@pytest.mark.parametrize(
    ("address", "token_file", "message"),
    [
        ("0.0.0.0:0", None, "--http 0.0.0.0:0 is refused: anybody who reaches it"),
        ("0.0.0.0:0", "/nonexistent", "cannot be read"),
        ("0", "/dev/null", "openssl rand -hex 32"),
        ("nosuchhost.invalid:1", None, "cannot listen there"),
    ],
)
def test_it_is_not_shown_to_strangers(board, address, token_file, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        serve(parse_http(address), board, token_file)
    with pytest.raises(ValueError, match="looks like 9400"):
        parse_http("nowhere")


def test_a_taken_port_says_so():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "rgpu.server", "--devices", "cpu:1", "--port", "0", "--http", str(port)],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 2
    assert "cannot listen there" in done.stderr and "Traceback" not in done.stderr
