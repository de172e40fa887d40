"""`rgpu-smi top`: the pool live in a terminal: bars and charts of the devices, a tree of sessions, and an end for one's
own. Needs Textual (`pip install 'rgpu[ui]'`).

Servers are asked in a thread, so a dead one never holds the screen.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import deque
from typing import Any, ClassVar

from rgpu.config import parse_address, parse_seconds
from rgpu.errors import RegistryUnavailable
from rgpu.smi import snapshot
from rgpu.smi.render import unreachable
from rgpu.smi.text import amount, duration, fit, links, milliseconds, plural, where

try:
    from rich.text import Text
    from textual import work
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import Horizontal, Vertical, VerticalScroll
    from textual.screen import ModalScreen
    from textual.widgets import Button, Footer, Header, Label, Static, Tree
    from textual.worker import get_current_worker
except ImportError:  # main says so, in words
    App = None  # type: ignore[assignment, misc]

Entry = dict[str, Any]
_STEPS = " ▁▂▃▄▅▆▇█"
_HISTORY = 240
_NAME, _WHERE, _BAR = 26, 18, 20


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rgpu-smi top", description="The pool live: devices, sessions, and an end for your own."
    )
    parser.add_argument("-d", "--delay", metavar="SEC", default=1.0, type=parse_seconds, help="between pictures (1)")
    options = parser.parse_args(argv)
    if App is None:
        parser.exit(2, "rgpu-smi top needs Textual: pip install 'rgpu[ui]' (rgpu-smi -l 1 shows the pool without)\n")
    Top(options.delay).run()
    return 0


def bar(share: float, width: int) -> str:
    """``████▌     `` for a share of 0 to 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "·")[:width]


def chart(values: list[float], width: int) -> str:
    """The last ``width`` shares of 0 to 1 as blocks, right-aligned."""
    steps = [_STEPS[round(max(0.0, min(1.0, value)) * 8)] for value in values[-width:]]
    return "".join(steps).rjust(width)


def tone(share: float) -> str:
    """Idle, working, busy."""
    return "green" if share < 0.1 else "yellow" if share < 0.75 else "red"


if App is not None:

    class DevicePanel(Static):
        """Two lines a device: what it is and its bars; its last minutes."""

        def __init__(self) -> None:
            super().__init__(classes="device")
            self.load: deque[float] = deque(maxlen=_HISTORY)
            self.memory: deque[float] = deque(maxlen=_HISTORY)
            self.device: Entry = {}

        def show(self, server: Entry, device: Entry) -> None:
            load, used = device["utilization"] / 100, device["memory_used"] / max(1, device["memory_total"])
            self.load.append(load)
            self.memory.append(used)
            self.device = device
            text = Text(no_wrap=True, overflow="ellipsis")
            text.append(f"{device['pool_index']:>3} ", "bold cyan")
            text.append(f"{fit(device['name'], _NAME):<{_NAME}} ", "bold")
            text.append(f"{fit(where(server, device), _WHERE):<{_WHERE}} ", "dim")
            text.append(f"{100 * load:>3.0f}% ", tone(load))
            text.append(bar(load, _BAR), tone(load))
            sizes = f"{amount(device['memory_used'])} / {amount(device['memory_total'])}"
            text.append(f"  {sizes:>21} ", tone(used))
            text.append(bar(used, _BAR), "blue")
            for key, unit in (("temperature", "°C"), ("power", "W")):
                if device.get(key) is not None:
                    text.append(f"  {device[key]:.0f}{unit}")
            width = _NAME + _WHERE - 2
            text.append(f"\n{'':>4}load   {chart(list(self.load), width)}", tone(load))
            text.append(f"   memory {chart(list(self.memory), width)}", "blue")
            self.update(text)

    class Confirm(ModalScreen[bool]):
        """Really?"""

        BINDINGS: ClassVar = [("y", "answer(True)", "Yes"), ("n,escape", "answer(False)", "No")]

        def __init__(self, session: Entry) -> None:
            super().__init__()
            self._session = session

        def compose(self) -> ComposeResult:
            session = self._session
            with Vertical(id="confirm"):
                yield Label(Text(f"End session {session['id']}?", "bold"))
                program = f"{session['program']}, process {session['pid']} on {session['host']}"
                yield Label(Text(f"{program}. Its arrays ({amount(session['memory_used'])}) will be gone."))
                with Horizontal():
                    yield Button("End it (y)", variant="error", id="yes")
                    yield Button("Leave it (n)", id="no")

        def on_mount(self) -> None:
            self.query_one("#no").focus()

        def on_button_pressed(self, event: Button.Pressed) -> None:
            self.dismiss(event.button.id == "yes")

        def action_answer(self, yes: bool) -> None:
            self.dismiss(yes)

    class Top(App[None]):
        """The screen."""

        TITLE = "rgpu-smi top"
        ENABLE_COMMAND_PALETTE = False
        CSS = """
        #devices { height: auto; max-height: 60%; padding: 1 1 0 1; }
        .device { height: 2; margin-bottom: 1; }
        #troubles { height: auto; padding: 0 2; color: $error; }
        #sessions { height: 1fr; border-top: solid $primary; padding: 0 1; }
        Confirm { align: center middle; }
        #confirm { width: 76; height: auto; border: round $error; padding: 1 2; background: $surface; }
        #confirm Horizontal { height: auto; margin-top: 1; }
        #confirm Button { margin-right: 2; }
        """
        BINDINGS: ClassVar = [
            Binding("q", "quit", "Quit"),
            Binding("k", "end", "End my session"),
            Binding("p", "pause", "Pause"),
        ]

        def __init__(self, delay: float = 1.0) -> None:
            super().__init__()
            self._delay, self._paused = delay, False
            self._panels: dict[str, DevicePanel] = {}
            self._entries: dict[str, Any] = {}
            self._box, self._troubles = VerticalScroll(id="devices"), Static(id="troubles")
            self._tree: Tree[Entry] = Tree("Sessions", id="sessions")

        def compose(self) -> ComposeResult:
            yield Header(show_clock=True)
            yield self._box
            yield self._troubles
            yield self._tree
            yield Footer()

        def on_mount(self) -> None:
            self._tree.root.expand()
            self._tree.focus()
            self._look()

        @work(thread=True)
        def _look(self) -> None:
            """Ask, show, rest; one after the other, so that slow servers make slow pictures and nothing worse."""
            worker, addresses = get_current_worker(), []
            while not worker.is_cancelled:
                if not self._paused:
                    with contextlib.suppress(RegistryUnavailable):  # then those that it knew last
                        addresses = snapshot.addresses()
                    servers = snapshot.take(addresses)
                    if not worker.is_cancelled:
                        self.call_from_thread(self._show, servers)
                time.sleep(self._delay)

        def _show(self, servers: list[Entry]) -> None:
            if not self._tree.is_attached:  # the screen was closed while the servers were asked
                return
            reached = sum(server["reachable"] for server in servers)
            devices = [(server, device) for server in servers for device in server["devices"]]
            sessions = sum(len(device["sessions"]) for _, device in devices)
            self.sub_title = (
                f"{reached}/{plural(len(servers), 'server')}, {plural(len(devices), 'device')}, "
                f"{plural(sessions, 'session')}"
            )
            troubles = [f"{s['address']}: {unreachable(s)}" for s in servers if not s["reachable"]]
            if not servers:
                troubles = ["RGPU_SERVERS is not set, so there is no pool to show: RGPU_SERVERS=host1,host2"]
            self._troubles.update(Text("\n".join(troubles)))
            self._show_devices(devices)
            self._show_sessions(devices)

        def _show_devices(self, devices: list[tuple[Entry, Entry]]) -> None:
            present = {f"{server['address']}/{device['index']}": (server, device) for server, device in devices}
            for key in self._panels.keys() - present.keys():
                self._panels.pop(key).remove()
            for key, (server, device) in present.items():
                if key not in self._panels:
                    self._panels[key] = DevicePanel()
                    self._box.mount(self._panels[key])
                self._panels[key].show(server, device)

        def _show_sessions(self, devices: list[tuple[Entry, Entry]]) -> None:
            """Device > session; nodes are kept, so that the cursor stays where it is."""
            tree = self._tree
            wanted: dict[str, tuple[str | None, Text, Entry | None]] = {}
            for server, device in devices:
                key = f"{server['address']}/{device['index']}"
                if device["sessions"]:
                    place = f"GPU {device['pool_index']}  {where(server, device)}"
                    way = f"  {links(device)} {milliseconds(server.get('rtt'))}"
                    wanted[key] = (None, Text(place, "bold").append(way, "dim"), None)
                for session in device["sessions"]:
                    data = session | {"address": server["address"]}
                    wanted[f"{key}/{session.get('id')}"] = (key, _session_words(session), data)
            for key in [key for key in self._entries if key not in wanted]:
                node = self._entries.pop(key)
                if node.parent is not None and node in node.parent.children:
                    node.remove()
            for key, (parent, words, data) in wanted.items():
                if key not in self._entries:
                    above = tree.root if parent is None else self._entries[parent]
                    add = above.add if parent is None else above.add_leaf
                    self._entries[key] = add(words, data=data, **({"expand": True} if parent is None else {}))
                self._entries[key].set_label(words)
                self._entries[key].data = data

        def action_pause(self) -> None:
            self._paused = not self._paused
            self.notify("paused; p goes on" if self._paused else "live again")

        def action_end(self) -> None:
            node = self._tree.cursor_node
            session = node.data if node else None
            if not session:
                self.notify("choose a session in the tree first", severity="warning")
            elif session["user"] != _me(session["address"]):
                owner = session["user"]
                words = f"session {session['id']} belongs to {owner}: only its own user ends it"
                self.notify(words, severity="warning", markup=False)
            else:
                self.push_screen(Confirm(session), lambda yes: self._answered(session, yes))

        def _answered(self, session: Entry, yes: bool | None) -> None:
            if yes:
                self._end(session)

        @work(thread=True)
        def _end(self, session: Entry) -> None:
            from rgpu.client.control import DaemonClient
            from rgpu.errors import RgpuError

            client = DaemonClient(parse_address(session["address"]), 2.0)
            try:
                client.end(session["id"])
            except RgpuError as error:
                self.call_from_thread(self.notify, str(error), severity="error", markup=False)
            else:
                self.call_from_thread(self.notify, f"session {session['id']} was ended")
            finally:
                client.close()


def _me(address: str) -> str:
    """Who we are to a server: the token says it, where there is one."""
    from rgpu import tokens
    from rgpu.client.control import user_name

    token = tokens.find(parse_address(address))
    return token.user if token and token.user else user_name()


def _session_words(session: Entry) -> Any:
    words = Text(f"{fit(session['user'], 14):<14} ", "magenta")
    words.append(f"{fit(session['program'].rpartition('/')[2], 24):<24} ", "bold")
    words.append(f"{fit(session['host'], 18)} pid {session['pid']}  ")
    limit = f" of {amount(session['memory_limit'])}" if session.get("memory_limit") else ""
    words.append(f"{amount(session['memory_used'])}{limit}  ", "blue")
    busy = session.get("utilization", 0)
    words.append(f"{busy:.0f}% busy  ", tone(busy / 100))
    words.append(f"{duration(session.get('age'))}  {session.get('link') or ''}", "dim")
    return words
