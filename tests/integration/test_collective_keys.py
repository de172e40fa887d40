"""Collectives between servers with keys: right, sealed on the way from worker to worker, and closed to strangers."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rgpu import tokens
from rgpu.config import parse_address
from rgpu.errors import RgpuError
from rgpu.link import curve, seal
from rgpu.server import keys
from rgpu.server.collective import Communicator
from rgpu.server.meeting import Store, Visitor
from rgpu.server.peers import Peers, unprotected
from rgpu.server.worker import listen_at
from tests.support.faultproxy import FaultProxy
from tests.support.servers import Server, free_port, program

MEMBER = """
import json, sys
import rgpu as cp
from rgpu.cuda import nccl
from rgpu.cupyx.distributed import init_process_group
rank, port = int(sys.argv[-2]), int(sys.argv[-1])
cp.cuda.Device(2 * rank).use()  # of another server
comm = init_process_group(2, rank, port=port)
found = []
for size in (3, 300_001):
    out = cp.zeros(size)
    comm.all_reduce(cp.arange(size) * (rank + 1.0), out)
    found.append(bool((out == 3.0 * cp.arange(size)).all()))
comm.send_recv(cp.full(70_000, rank), got := cp.zeros(70_000, "l"), 1 - rank)
found.append(bool((got == 1 - rank).all()))
comms, arrays = nccl.NcclCommunicator.initAll(4), []  # and of one process, over all devices
for number in range(4):
    with cp.cuda.Device(number):
        arrays.append(cp.full(100_000, number + 1.0))
    comms[number].allReduce(arrays[-1].data.ptr, arrays[-1].data.ptr, 100_000, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, 0)
found += [bool((array == 10).all()) for array in arrays]
comm.barrier()
comm.stop()
print(json.dumps(found))
"""


@pytest.fixture
def token(tmp_path):
    """The token of somebody who may use two servers, which take each other for other hosts."""
    keys.init(tmp_path / "keys")
    options = ("--keys", str(tmp_path / "keys"), "--bind", "0.0.0.0")
    with (
        Server("cpu:2", "hostA", *options, env=os.environ | {"RGPU_HOST_ID": "one"}) as one,
        Server("cpu:2", "hostB", *options, env=os.environ | {"RGPU_HOST_ID": "two"}) as two,
    ):
        addresses = [parse_address(f"127.0.0.1:{server.address.rpartition(':')[2]}") for server in (one, two)]
        _, made = keys.KeyRing(tmp_path / "keys").create("alice", tuple(addresses))
        tokens.save(made, tmp_path / "alice.rgpu")
        yield tmp_path / "alice.rgpu"


def test_two_processes_and_two_servers_with_keys(token):
    port = str(free_port())
    with ThreadPoolExecutor(2) as threads:
        jobs = [
            threads.submit(program, MEMBER, arguments=(str(rank), port), RGPU_TOKEN=str(token)) for rank in range(2)
        ]
        found = [json.loads(job.result(60).stdout) for job in jobs]
    assert found == [[True] * 7] * 2


class _Device:
    kind = "cpu"
    allowance = None


class _Tapped:
    """A listener that is found behind a proxy only, which keeps what passes."""

    def __init__(self, listener, heard):
        self._listener = listener
        self.proxies = []
        for uri in listener.uris:
            host, _, port = uri.partition("://")[2].rpartition(":")
            self.proxies.append(FaultProxy((host, int(port))))
            self.proxies[-1].heard = heard
        kinds = [uri.partition("://")[0] for uri in listener.uris]
        self.uris = ["{}://{}:{}".format(kind, *proxy.address) for kind, proxy in zip(kinds, self.proxies)]
        self.accept = listener.accept


def together(work, *each):
    with ThreadPoolExecutor(len(each)) as threads:
        return [job.result(40) for job in [threads.submit(work, one) for one in each]]


@pytest.mark.parametrize("protection", ["sealed", "curve", "none"])
def test_between_workers_nothing_can_be_read(protection):
    if protection == "sealed" and seal.missing():
        pytest.skip(seal.missing())
    heard, taps = bytearray(), []

    def listen(kinds, keys, seal):
        taps.append(_Tapped(listen_at("127.0.0.1", range(1), kinds, keys, seal), heard))
        return taps[-1]

    meeting = unprotected if protection == "none" else curve.meeting
    peers = [Peers(_Device(), listen, meeting=meeting) for _ in range(2)]
    if protection == "curve":  # as where a worker's host has no cryptography library
        peers[1]._sealing, peers[1].room = False, ""
    store = Store("tcp://127.0.0.1:0", meeting)
    place = [store.endpoint.partition("://")[2]]
    comms = together(lambda rank: Communicator(peers[rank], 2, rank, store.secret, place), 0, 1)
    words = np.frombuffer(b"a secret" * 10_000, "i8")
    arrays = [words.copy(), np.zeros_like(words)]
    try:
        together(lambda comm: comm.run("broadcast", arrays[0], arrays[comm.rank], 0, 0), *comms)
        np.testing.assert_array_equal(arrays[1], words)
        together(lambda comm: comm.run("all_reduce", arrays[comm.rank], arrays[comm.rank], 2, 0), *comms)
        np.testing.assert_array_equal(arrays[0], words)
        assert len(heard) > 2 * words.nbytes
        assert (bytes(words[:8]) in heard) == (protection == "none")
    finally:
        for end in (*comms, *peers, *[proxy for tap in taps for proxy in tap.proxies], store):
            end.close()


def test_the_meeting_place_hears_nobody_without_the_secret():
    store = Store("tcp://127.0.0.1:0", curve.meeting)
    place = [store.endpoint.partition("://")[2]]
    stranger = Visitor(place, bytes(16), 60.0, curve.meeting, 0)
    friend = Visitor(place, store.secret, 60.0, curve.meeting, 0)
    try:
        with pytest.raises((RgpuError, TimeoutError)):
            stranger.take("size", 3.0)
        assert store.unused
        friend.put("size", "1")
        assert friend.take("size", 10.0) == "1"
    finally:
        stranger._client.close()
        friend.leave()
        friend._client.close()
        store.close()
