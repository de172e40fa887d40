"""Cuts while a session goes to another worker, because its server is drained or one of two workers died; under keys.

The client's way to every worker, and the workers' to each other, lead through proxies that reset or stall.
"""

import contextlib
import os
import signal
import time

import pytest

from rgpu import tokens
from rgpu.client import peer, pool, seat
from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.server import keys
from tests.chaos.test_redundancy import mirror, process_of, work
from tests.support.faultproxy import FaultProxy
from tests.support.servers import Server, free_port
from tests.support.waiting import wait_until

STEPS, BEGIN, CUTS = 40, 8, 6  # the session begins to move at a step; then so many steps have a cut


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """The addresses of three servers with one folder of keys, and a token for all of them."""
    folder = tmp_path_factory.mktemp("pool")
    keys.init(folder / "keys")
    addresses = tuple(parse_address(f"127.0.0.1:{free_port()}") for _ in range(3))
    _, token = keys.KeyRing(folder / "keys").create("alice", addresses, admin=True)
    tokens.save(token, folder / "alice.rgpu")
    with contextlib.ExitStack() as stack:
        for address in addresses:
            options = ("--port", str(address.port), "--keys", str(folder / "keys"))
            stack.enter_context(Server("cpu:2", f"at{address.port}", *options))
        yield addresses, token.but(path=str(folder / "alice.rgpu"))


@pytest.fixture
def proxies(monkeypatch):
    """Those to workers, as they come to be: whose way, the client's or a worker's -> proxies."""
    with contextlib.ExitStack() as stack:
        made = {"client": [], "worker": []}

        def through(uri, whose):
            scheme, _, place = uri.partition("://")
            if scheme == "shm":
                return uri
            target = "127.0.0.1", int(place.rpartition(":")[2])
            # What goes from worker to worker takes half a second, so that the cuts come into it.
            proxy = stack.enter_context(FaultProxy(target, bandwidth=16e6 if whose == "worker" else 0.0))
            made[whose].append(proxy)
            return f"{scheme}://127.0.0.1:{proxy.address[1]}"

        reachable, where = seat.reachable, peer._where
        monkeypatch.setattr(seat, "reachable", lambda *given: [through(uri, "client") for uri in reachable(*given)])
        monkeypatch.setattr(peer, "_where", lambda *given: [through(uri, "worker") for uri in where(*given)])
        yield made


@contextlib.contextmanager
def daemon(address, token):
    client = DaemonClient(address, timeout=30, token=token)
    yield client
    client.close()


@pytest.mark.parametrize("whose", ["client", "worker"])
@pytest.mark.parametrize("why", ["drain", "death"])
def test_a_session_that_moves_is_cut_off(guarded, proxies, monkeypatch, why, whose):
    """Resets at six steps in a row and a stall: the numbers are what they would have been, and it arrives."""
    import rgpu

    addresses, token = guarded
    monkeypatch.setenv("RGPU_TOKEN", token.path)
    monkeypatch.setenv("RGPU_LINK", "tcp")
    rgpu.connect(*map(str, addresses), redundancy=1 if why == "drain" else 2)
    first = pool.get().device(0).daemon.address
    try:
        expected = work(rgpu, STEPS)
        large = rgpu.arange(1 << 20)  # some of it is under way when the cut comes
        large.get()

        def begin():
            if why == "death":
                os.kill(process_of(mirror().halves[0]), signal.SIGKILL)
            else:
                with daemon(first, token) as asked:
                    asked.drain()

        def pause(step):
            if step == BEGIN:
                begin()
                wait_until(lambda: proxies["worker"], timeout=60)  # the state begins to leave
            if BEGIN <= step < BEGIN + CUTS:
                for proxy in proxies[whose]:
                    proxy.reset()
            elif step == BEGIN + CUTS:
                stalled = list(proxies[whose])
                for proxy in stalled:
                    proxy.stall()
                time.sleep(1.0)
                for proxy in stalled:
                    proxy.resume()
            time.sleep(0.02)

        def arrived():
            both = mirror()
            if why == "death":
                return both.takeovers >= 1 and len(both.whole) == 2
            return both is not None and len(both.halves) == 1 and both.halves[0].daemon.address != first

        assert work(rgpu, STEPS, pause) == expected
        assert sum(proxy.resets for proxy in proxies[whose]) > 0
        wait_until(arrived, timeout=60)
        assert int(large[-1]) == (1 << 20) - 1
        assert work(rgpu, 5) == work(rgpu, 5)
    finally:
        rgpu.close()
        with daemon(first, token) as asked:
            asked.drain(False)
