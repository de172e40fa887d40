"""The web page in a real browser, while sessions run: what it shows, light and dark, and on a phone."""

import os
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from rgpu.web import Board, WebServer
from tests.support import browser
from tests.support.daemons import Daemon, Talk

pytestmark = [
    pytest.mark.skipif(not browser.chromium(), reason="no Chromium here (scripts/test installs it where it is root)"),
    pytest.mark.timeout(180),
]
EVIL = "<img src=x onerror='document.title=1'>"
VIEWS = ("#/", "#/devices", "#/sessions", "#/queue")


@pytest.fixture(scope="module")
def window():
    with browser.Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def daemon():
    with Daemon("--devices", "cpu:2", "--name", "gpu1", "--http", "0", "--device-memory", "1G") as started:
        yield started


@pytest.fixture
def page(window, daemon):
    window.problems.clear()
    window.window(1280, 800)
    window.ask("Page.navigate", url="about:blank")
    window.open(daemon.client.snapshot()["page"])
    window.until("document.querySelectorAll('.card').length === 2")
    yield window
    assert not window.problems


@pytest.fixture
def session(daemon, monkeypatch):
    """A session of somebody who calls himself and his program what he likes."""
    monkeypatch.setattr("rgpu.client.control._who_we_are", lambda: (EVIL, "laptop", 4242, EVIL))
    talk = Talk(daemon.client.attach(1))
    yield talk
    daemon.client.release(talk.lease.session)
    talk.connection.abort()


def text(page, selector):
    return page.look(f"[...document.querySelectorAll({selector!r})].map((e) => e.innerText)")


def test_sessions_come_and_go(page, session, daemon):
    page.until("document.querySelector('tbody tr')?.innerText.includes('4242')")
    assert page.look("document.images.length") == 1  # the mark in the corner: what a client says is text, never markup
    first, second = text(page, ".card")
    assert "gpu1:0" in first and "free" in first
    assert "gpu1:1" in second and "1 session" in second and EVIL in second
    assert "1 server · live" in text(page, "#status")
    daemon.client.release(session.lease.session)
    page.until("!document.querySelector('tbody tr')")
    assert "No session is running." in page.look("document.body.innerText")


def test_a_device_has_live_charts(page):
    page.look("document.querySelector('.card').click()")
    page.until("document.querySelectorAll('.panel canvas').length >= 2")
    assert "GPU 0 · gpu1:0 · CPU-" in text(page, ".lead")[0]
    drawn = """(() => { const c = document.querySelector('.panel canvas');
        return c.width > 0 && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0); })()"""
    page.until(drawn)
    label = "document.querySelector('.panel canvas').getAttribute('aria-label')"
    assert page.look(label).startswith("Utilization: load ")
    page.look("location.hash = '#/gpu/nowhere'")
    page.until("document.querySelector('h1').innerText === 'This device is not there'")


def test_sorting_and_filtering(page, session):
    page.look("location.hash = '#/devices'")
    page.until("document.querySelectorAll('tbody tr').length === 2")
    page.look("document.querySelector('th button').click()")
    rows = "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText.trim()[0]).join('')"
    assert page.look(rows) == "10"
    page.look("location.hash = '#/sessions'")
    page.until("document.querySelectorAll('tbody tr').length === 1")
    search = "const s = document.querySelector('input'); s.value = {!r}; s.dispatchEvent(new Event('input'))"
    page.look("{" + search.format("nobody") + "}")
    assert page.look("document.querySelectorAll('tbody tr').length") == 0
    page.look("{" + search.format("LAPTOP") + "}")
    assert page.look("document.querySelectorAll('tbody tr').length") == 1


def test_leases_the_queue_and_a_dead_server(window):
    """What a daemon says while leases are held and clients wait; and a server of the pool that is gone."""
    who = {"user": EVIL, "host": "desk", "pid": 77, "program": "/home/bob/sweep.py"}
    lease = who | {"id": "le", "memory": 1 << 30, "compute": 0.25, "sessions": 1, "idle": 3.0, "seconds_left": 7200.0}
    session = who | {"id": "se", "memory_used": 1 << 29, "memory_limit": 1 << 30, "memory_spilled": 1 << 20}
    session |= {"commands": 5, "compute": 0.25, "utilization": 50, "age": 61.0, "link": "shm"}
    device = {"index": 0, "name": "GPU", "kind": "cuda", "uuid": "GPU-1", "memory_total": 8 << 30}
    device |= {"memory_used": 1 << 30, "utilization": 50, "power": 300.0, "temperature": 88}
    device |= {"sessions": [session], "leases": [lease]}
    waiting = who | {"position": 1, "count": 2, "memory": 1 << 30, "compute": 0, "waited": 75.0}
    server = {"name": "gpu1", "address": "gpu1:1", "host": "gpu1", "version": "0", "uptime": 1.0, "reachable": True}
    dead = {"address": "gpu2:1", "reachable": False, "error": "refused", "devices": []}
    dead["last_answer"] = time.time() - 3.5 * 86400
    board = Board("0.1.0")
    board.publish([server | {"draining": True, "queue": [waiting], "devices": [device]}, dead])
    page = WebServer("127.0.0.1", 0, board)
    try:
        window.problems.clear()
        window.window(1280, 800)
        window.open(page.url)
        window.until("document.querySelectorAll('.card').length === 1")
        assert text(window, ".banner") == ["gpu2:1 refused · last answer 3 days ago"]
        (card,) = text(window, ".card")
        assert all(word in card for word in ("1 session", EVIL, "88 °C", "300 W", "draining"))
        row = text(window, "tbody tr")[0]
        assert all(word in row for word in ("512 MiB / 1.0 GiB", "25 %", "1.0 MiB", "shm", "1 min 1 s"))
        window.look("document.querySelector('.card').click()")
        window.until("document.querySelectorAll('.panel').length === 4")
        lease_row = text(window, "tbody tr")[1]
        assert all(word in lease_row for word in ("desk · 77", "sweep.py", "1.0 GiB", "25 %", "2 h 0 min"))
        window.look("location.hash = '#/queue'")
        window.until("document.querySelector('h1')?.innerText === 'Queue'")
        queued = text(window, "tbody tr")[0]
        assert all(word in queued for word in ("2 devices, 1.0 GiB", "gpu1", "1 min 15 s", EVIL))
        assert window.look("document.images.length") == 1
        assert not window.problems
    finally:
        page.close()
    window.problems.clear()  # the browser's own words about the lost connection


def test_light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.look(ground)
    page.window(1280, 800, dark=True)
    dark = page.until(f"{ground} !== {light!r} && {ground}")
    page.look("document.getElementById('theme').click()")  # automatic -> light, whatever the system has
    assert page.look(ground) == light
    page.look("document.getElementById('theme').click()")
    page.window(1280, 800)
    assert page.look(ground) == dark
    page.look("document.getElementById('theme').click()")
    assert contrast(page, "body") > 7
    for selector in (".place", ".note", "th button", ".chip"):
        assert contrast(page, selector) > 4.4, selector


def contrast(page, selector):
    """The ratio of the luminance of a text and of the ground behind it."""
    page.until(f"!!document.querySelector({selector!r})")
    return page.look(
        """((element) => {
            const parse = (text) => text.match(/[\\d.]+/g).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
                .map((v) => (v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
                .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
            const ink = light(parse(getComputedStyle(element).color));
            let behind = element, ground;
            while ((ground = parse(getComputedStyle(behind).backgroundColor))[3] === 0) behind = behind.parentElement;
            const pair = [ink, light(ground)].sort((a, b) => b - a);
            return (pair[0] + 0.05) / (pair[1] + 0.05);
        })"""
        + f"(document.querySelector({selector!r}))"
    )


@pytest.mark.parametrize("width", [360, 768])
def test_on_a_small_screen_nothing_is_cut_off(page, session, width):
    page.window(width, 780)
    for view in VIEWS:
        page.look(f"location.hash = {view!r}")
        page.until("document.querySelector('main').children.length === 1")
        overflow = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
        page.until(f"{overflow} <= 0")  # the window has its new width in a moment
    size = "parseFloat(getComputedStyle(document.querySelector('nav a')).height)"
    assert page.look(size) >= 24  # a finger hits it


def test_a_server_that_goes_away(window):
    with Daemon("--http", "0", "--prestart", "0") as daemon:
        url = daemon.client.snapshot()["page"]
        assert urlsplit(url).hostname == "127.0.0.1"
        window.window(1280, 800)
        window.open(url)
        window.until("document.querySelectorAll('.card').length === 1")
    window.until("document.getElementById('status').innerText.includes('connection lost')")
    window.problems.clear()  # the browser's own words about the lost connection


PROGRAM = """
import sys, time
import rgpu as cp
x = cp.ones((256, 1024))
end = time.time() + 60
while time.time() < end:
    float((x * x).sum())
"""


def test_while_a_program_runs(page, daemon):
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"RGPU_SERVERS": str(daemon.address), "RGPU_VISIBLE_DEVICES": "1"},
        stdin=subprocess.DEVNULL,
    )
    try:
        page.until("document.querySelectorAll('tbody tr').length === 1", 40)
        cell = "document.querySelector('td[data-label=\"{}\"]').innerText"
        assert page.look(cell.format("Client")).endswith(f"· {running.pid}")
        page.until(f"parseFloat({cell.format('Commands/s')}) > 0", 40)
        page.until(f"{cell.format('Memory')}.includes('MiB')", 40)
        page.until("parseFloat(document.querySelectorAll('.card .load')[1].innerText) > 0", 40)
        assert running.poll() is None
    finally:
        running.kill()
        running.wait(10)
    page.until("!document.querySelector('tbody tr')", 40)
