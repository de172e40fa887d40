"""rgpu-smi top, in a terminal that is not there: what it shows, and the end of a session."""

import asyncio

import pytest

from tests.support.daemons import Daemon, Talk

pytest.importorskip("textual", reason="rgpu-smi top needs Textual: pip install 'rgpu[ui]'")
from rgpu.smi import top  # noqa: E402


@pytest.fixture(scope="module")
def daemon():
    with Daemon("--devices", "cpu:2", "--name", "gpu1", "--device-memory", "1G") as started:
        yield started


@pytest.fixture(autouse=True)
def pool(daemon, monkeypatch, tmp_path):
    monkeypatch.setenv("RGPU_SERVERS", f"{daemon.address},127.0.0.1:1")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def session(daemon):
    talk = Talk(daemon.client.attach(1))
    yield talk.lease.session.hex()[:8]
    daemon.client.release(talk.lease.session)
    talk.connection.abort()


def drive(test):
    """Run a coroutine with the screen."""

    async def run():
        app = top.Top(0.1)
        async with app.run_test(size=(140, 40)) as pilot:
            await test(app, pilot)

    asyncio.run(run())


async def until(pilot, condition, timeout=20.0):
    for _ in range(int(timeout / 0.05)):
        if value := condition():
            return value
        await pilot.pause(0.05)
    raise AssertionError(f"not within {timeout} s: {condition}")


def labels(app):
    tree = app.query_one("#sessions", top.Tree)
    return [str(leaf.label) for node in tree.root.children for leaf in node.children]


async def choose_the_session(app, pilot):
    tree = app.query_one("#sessions", top.Tree)

    def chosen():
        leaf = tree.root.children[0].children[0]
        tree.move_cursor(leaf)  # a leaf that is not laid out yet cannot be chosen
        return tree.cursor_node is leaf

    await until(pilot, chosen)


def test_devices_sessions_and_a_dead_server(session):
    async def test(app, pilot):
        await until(pilot, lambda: labels(app))
        panels = list(app.query(top.DevicePanel))
        assert [panel.device["pool_index"] for panel in panels] == [0, 1]
        await until(pilot, lambda: len(panels[0].load) > 2)
        assert "1/2 servers, 2 devices, 1 session" in app.sub_title
        assert "busy" in labels(app)[0]
        trouble = app.query_one("#troubles", top.Static)
        assert "127.0.0.1:1: refused the connection" in str(trouble.render())

    drive(test)


def test_ending_ones_own_session(daemon, session):
    async def test(app, pilot):
        await until(pilot, lambda: labels(app))
        await choose_the_session(app, pilot)
        await pilot.press("k")
        await until(pilot, lambda: isinstance(app.screen, top.Confirm))
        await pilot.press("n")
        await until(pilot, lambda: not isinstance(app.screen, top.Confirm))
        await choose_the_session(app, pilot)
        assert [one["id"] for one in daemon.sessions()] == [session]
        await pilot.press("k")
        await until(pilot, lambda: isinstance(app.screen, top.Confirm))
        await pilot.press("y")
        await until(pilot, lambda: not labels(app))
        assert not daemon.sessions()

    drive(test)


def test_anothers_session_is_not_ended(daemon, session, monkeypatch):
    monkeypatch.setattr("rgpu.client.control.user_name", lambda: "somebody-else")

    async def test(app, pilot):
        await until(pilot, lambda: labels(app))
        await choose_the_session(app, pilot)
        await pilot.press("k")
        await pilot.pause(0.2)
        assert not isinstance(app.screen, top.Confirm)
        assert daemon.sessions()

    drive(test)


def test_bars_and_charts():
    assert [top.bar(share, 4) for share in (0, 0.5, 1, 2, -1)] == ["····", "██··", "████", "████", "····"]
    assert top.bar(0.125, 4) == "▌···"
    assert top.chart([0, 0.5, 1], 5) == "   ▄█"
    assert [top.tone(share) for share in (0.05, 0.5, 0.9)] == ["green", "yellow", "red"]


def test_without_textual_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(top, "App", None)
    with pytest.raises(SystemExit) as ended:
        top.main([])
    assert ended.value.code == 2
    assert "pip install 'rgpu[ui]'" in capsys.readouterr().err
