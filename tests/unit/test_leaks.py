"""The leak check sees what it promises to see."""

import os
import socket
import subprocess
import sys
import threading

from tests.support import leaks
from tests.support.waiting import wait_until


def test_a_child_process_is_seen_until_it_is_gone():
    before = leaks.snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert any(f"process {child.pid}:" in name for name in leaks.left_behind(before, patience=0))
    wait_until(lambda: child.pid in leaks.marked(os.environ[leaks.MARK]).values())
    child.communicate()
    assert not leaks.left_behind(before)


def test_a_listening_socket_is_seen():
    before = leaks.snapshot()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert leaks.left_behind(before, patience=0) == {f"listening socket on port {port}"}
    assert not leaks.left_behind(before)


def test_a_thread_is_seen():
    before, go = leaks.snapshot(), threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    thread.start()
    assert leaks.left_behind(before, patience=0) == {"thread forgotten"}
    assert not leaks.left_behind(before, patience=0, allowed=("threads",))
    go.set()
    thread.join()
