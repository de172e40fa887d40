"""T15: bits flipped above TCP, where there are no keys. Checksums find each, and the session sends again."""

import numpy as np
import pytest

from tests.support.faultproxy import FaultProxy
from tests.support.servers import Server

FLIPS = 150
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def line(monkeypatch):
    """(the face, the proxy that the worker's link passes)."""
    import rgpu
    from rgpu.client import seat

    monkeypatch.setenv("RGPU_CHECKSUM", "on")
    monkeypatch.setenv("RGPU_UPLOAD_CACHE", "off")
    proxies = []
    connect = seat.link.connect

    def through_proxy(uris, identity, only, token, seal, checksum):
        (uri,) = (uri for uri in uris if uri.startswith("tcp://"))
        host, _, port = uri.removeprefix("tcp://").rpartition(":")
        proxies.append(FaultProxy((host, int(port)), seed=15))
        return connect("tcp://{}:{}".format(*proxies[-1].address), identity, checksum=checksum)

    monkeypatch.setattr(seat.link, "connect", through_proxy)
    with Server("cpu:1", "far", "--grace", "20") as server:
        rgpu.connect(server.address)
        rgpu.ones(1).get()  # lease and connect
        yield rgpu, proxies[0]
        rgpu.close()
    for proxy in proxies:
        proxy.close()


def test_flipped_bits_are_found_and_sent_again(line):
    """Large data, small reads and a counter: each number is right, and every command ran once."""
    cp, proxy = line
    chance = np.random.default_rng(15)
    large = chance.random(1 << 19)  # 4 MiB
    counter, counted = cp.zeros(1, np.int64), 0
    proxy.corrupt = 0.03
    rounds = 0
    while proxy.corrupted < FLIPS:
        rounds += 1
        np.testing.assert_array_equal((cp.asarray(large) * 2).get(), large * 2)
        small = chance.random(100)
        for _ in range(20):
            counter += 1
            counted += 1
            np.testing.assert_array_equal((cp.asarray(small) + 1).get(), small + 1)
        assert int(counter[0]) == counted
    assert rounds and proxy.accepted > FLIPS / 4  # found ones end a connection; what follows in it is lost with it
    proxy.corrupt = 0.0
    np.testing.assert_array_equal((cp.asarray(large) + counter).get(), large + counted)
