"""Leases over the servers of a registry: granted in one transaction, fenced, queued for, given back; etcd is real."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import rgpu
from rgpu.client.control import DaemonClient
from rgpu.client.holding import lend
from rgpu.config import load_client, parse_address
from rgpu.errors import LeaseEnded, NoSuchDevice, RegistryUnavailable, ServerBusy, ServerUnavailable
from rgpu.leases.filters import parse_filters
from rgpu.leases.terms import Terms
from rgpu.registry import directory, grants
from rgpu.registry.etcd import Etcd
from tests.support.etcds import EtcdServer, free_port, needs_etcd
from tests.support.servers import Server, program
from tests.support.waiting import wait_until

pytestmark = needs_etcd
MIB = 1 << 20
COUNT = "import rgpu as cp; print(cp.cuda.runtime.getDeviceCount(), cp.cuda.runtime.memGetInfo()[1])"


@pytest.fixture
def etcd(tmp_path):
    with EtcdServer(tmp_path) as server:
        yield server


@pytest.fixture
def client(etcd):
    one = Etcd(etcd.url)
    yield one
    one.close()


def serve(etcd, name, devices="cpu:1", *options):
    return Server(devices, name, "--device-memory", "64MiB", "--registry", etcd.url, *options)


@pytest.fixture
def servers(etcd, client):
    page = free_port()
    with serve(etcd, "one", "cpu:1", "--http", str(page)) as one, serve(etcd, "two") as two:
        one.page = page
        wait_until(lambda: len(books(client)) == 2)
        yield one, two


def books(client):
    """The leases in the book of each server."""
    return {key.removeprefix(directory.BOOKS): book["leases"] for key, book in client.read(directory.BOOKS).items()}


def held(client):
    return [name for leases in books(client).values() for name in leases]


def rgpu_smi(etcd, *arguments):
    return program("rgpu.smi", launcher=("-m",), arguments=arguments, RGPU_REGISTRY=etcd.url, RGPU_SERVERS="").stdout


@contextlib.contextmanager
def borrowed(etcd, told=lambda text: None, *, wait=0.0, **terms):
    settings = load_client({"registry": etcd.url, "servers": []}, environ={}, files=[])
    parts, daemons = lend(settings.but(wait_for=wait), Terms(**terms), told)
    try:
        yield parts
    finally:
        for part, daemon in zip(parts, daemons):
            with contextlib.suppress(ServerUnavailable):
                daemon.give_back(part.lease)
            daemon.close()


def test_a_lease_over_two_servers_is_one_grant_in_both_books(etcd, client, servers):
    with borrowed(etcd, count=2, memory=16 * MIB, compute=0.5) as parts:
        assert sorted(str(part.address) for part in parts) == sorted(server.address for server in servers)
        for part in parts:
            ((name, lease),) = books(client)[str(part.address)].items()
            assert name == grants.name_of(part.lease) and lease["parts"] == {"0": 16 * MIB}
            assert part.lease.hex() not in str(books(client))  # the right to use it is not for all to read
        assert len({entry.modified for entry in client.snapshot(directory.BOOKS)[1].values()}) == 1
    wait_until(lambda: not held(client))


def test_programs_lease_over_the_registry(etcd, client, servers):
    run = program("run", launcher=("-m", "rgpu.cli"), RGPU_SERVERS="", RGPU_REGISTRY=etcd.url,
                  arguments=("-n", "2", "-m", "8MiB", "--", sys.executable, "-c", COUNT))  # fmt: skip
    assert run.stdout.split() == ["2", str(8 * MIB)]
    wait_until(lambda: not held(client))
    pool = rgpu.connect(registry=etcd.url, gpus=2, memory="8MiB")
    try:
        assert len(pool.devices) == 2 and len(held(client)) == 2
        assert int(rgpu.arange(10).sum()) == 45
    finally:
        rgpu.close()
    wait_until(lambda: not held(client))


def test_devices_of_several_servers_are_those_with_the_fastest_links(etcd, client):
    """Of three hosts one is far from the others: what their workers measured stands in the books, and decides."""
    with contextlib.ExitStack() as stack:
        at = {}
        for host in "abc":
            env = os.environ | {"RGPU_HOST_ID": f"host-{host}"}
            env |= {"RGPU_EMULATED_LINK": "50000us,20MB/s"} if host == "b" else {}
            server = Server("cpu:1", host, "--device-memory", "64MiB", "--registry", etcd.url, env=env)
            at[stack.enter_context(server).address] = host
        wait_until(lambda: len(books(client)) == 3)
        rgpu_smi(etcd, "topo", "-b")

        def measured():  # one of two workers measures the link between them
            told = client.read(directory.BOOKS).items()
            names = [(f"host-{at[key.removeprefix(directory.BOOKS)]}", book) for key, book in told]
            return {frozenset({name, other}) for name, book in names for other in book["reach"]}

        def idle():  # nobody holds a lease, nor does a book still list a session of those who measured
            return all(not book["leases"] and book["load"] == [0] for book in client.read(directory.BOOKS).values())

        wait_until(lambda: len(measured()) == 3, 30)
        wait_until(idle)
        for _ in range(8):  # ties are decided by chance: without the links another pair would come up
            with borrowed(etcd, count=2, memory=16 * MIB) as parts:
                assert sorted(at[str(part.address)] for part in parts) == ["a", "c"]
            wait_until(idle)


def test_what_cannot_be_is_told_apart_from_what_is_not_now(etcd, servers):
    with pytest.raises(NoSuchDevice, match="3 devices"), borrowed(etcd, count=3):
        pass
    with borrowed(etcd, count=2, memory=64 * MIB):
        with pytest.raises(ServerBusy, match="--wait-for"), borrowed(etcd, memory=MIB):
            pass
        with pytest.raises(ServerBusy), borrowed(etcd, memory=MIB, wait=0.3):
            pass


def test_who_asks_the_servers_themselves_counts_as_well(etcd, client, servers):
    direct = DaemonClient(parse_address(servers[0].address))
    lease = direct.request(Terms(memory=60 * MIB)).lease
    try:
        wait_until(lambda: held(client))
        with borrowed(etcd, memory=32 * MIB) as parts:
            assert str(parts[0].address) == servers[1].address
        with pytest.raises(ServerBusy), borrowed(etcd, count=2, memory=32 * MIB):
            pass
    finally:
        direct.give_back(lease)
        direct.close()


def page(server, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.page}{path}", timeout=5) as answer:
        return answer.read().decode()


def test_whoever_waits_is_told_the_place_and_woken_at_once(etcd, client, servers):
    said, got = [], []

    def waiter():
        with borrowed(etcd, said.append, wait=20, count=2, memory=64 * MIB):
            got.append(time.monotonic())

    with borrowed(etcd, memory=64 * MIB):
        thread = threading.Thread(target=waiter)
        thread.start()
        wait_until(lambda: said)
        assert "place 1 of 1" in said[0]
        second = []
        with pytest.raises(ServerBusy, match=r"1 others wait|asked for"), borrowed(etcd, second.append, memory=MIB):
            pass  # the free device is the first waiter's: who comes later does not pass
        time.sleep(0.5)
        assert not got and len(client.read(directory.QUEUE)) == 1
        shown = rgpu_smi(etcd)
        assert shown.count("Queue:") == 1 and shown.count("2 devices, 64MiB") == 1, shown
        row = next(line for line in shown.splitlines() if "2 devices, 64MiB" in line)
        assert str(os.getpid()) in row and "registry" in row
        for server in json.loads(rgpu_smi(etcd, "--json"))["servers"]:
            assert [(one["position"], one["count"]) for one in server["queue"]] == [(1, 2)]
        wait_until(lambda: 'rgpu_queue_depth{server="one"} 1' in page(servers[0], "/metrics"))
        (row,) = json.loads(page(servers[0], "/v1/picture"))["servers"][0]["queue"]
        assert (row["position"], row["count"], row["pid"]) == (1, 2, os.getpid())
        given = time.monotonic()
    thread.join(20)
    assert got and got[0] - given < 2.0
    wait_until(lambda: not client.read(directory.QUEUE))
    wait_until(lambda: 'rgpu_queue_depth{server="one"} 0' in page(servers[0], "/metrics"))


def test_who_waits_for_a_moment_only_is_in_the_queue_all_the_same(etcd, servers):
    """Also where reading the registry alone takes longer."""
    said = []
    with borrowed(etcd, count=2, memory=64 * MIB):
        with pytest.raises(ServerBusy), borrowed(etcd, said.append, wait=0.001, memory=MIB):
            pass
    assert "place 1 of 1" in said[0]


def test_a_killed_server_is_passed_over_at_once_and_said(etcd, client, servers):
    servers[0].kill()
    assert len(books(client)) == 2  # it is still registered
    began = time.monotonic()
    with borrowed(etcd, memory=MIB) as parts:
        assert str(parts[0].address) == servers[1].address
    done = program(COUNT, RGPU_SERVERS="", RGPU_REGISTRY=etcd.url)
    assert done.stdout.split()[0] == "1" and servers[0].address in done.stderr and "left out" in done.stderr
    said = []
    with pytest.raises(ServerBusy, match="answer"):  # nobody else will do
        with borrowed(etcd, said.append, memory=MIB, filters=parse_filters("server=one")):
            pass
    assert "passed over" in said[0] and servers[0].address in said[0]
    assert time.monotonic() - began < 8


def test_a_lease_that_needs_a_dead_server_leaves_nothing_behind(etcd, client, servers):
    servers[1].kill()
    with pytest.raises((ServerBusy, ServerUnavailable)), borrowed(etcd, count=2, memory=MIB):
        pass
    wait_until(lambda: not books(client)[servers[0].address])


def test_a_server_checks_the_fence(etcd, client, servers):
    direct = DaemonClient(parse_address(servers[0].address), timeout=10)
    asker = grants.Asker(etcd.url, "me")
    try:
        terms = Terms(memory=MIB)
        grant = asker.get(terms, 0.0)
        (address,) = grant.by_server()
        direct.close()
        direct = DaemonClient(parse_address(address), timeout=10)
        with pytest.raises(LeaseEnded):  # somebody who does not know the lease's id
            direct.request(terms.on((0,)), promised=bytes(16), revision=grant.revision)
        asker.withdraw(grant, [address])
        with pytest.raises(LeaseEnded, match="withdrawn"):  # a holder who comes too late
            direct.request(terms.on((0,)), promised=grant.lease(address), revision=grant.revision + 1)
        with pytest.raises(ServerUnavailable, match="has not seen revision"):  # etcd was set back
            direct.request(terms.on((0,)), promised=grant.lease(address), revision=grant.revision + 1000)
    finally:
        asker.close()
        direct.close()


def test_a_grant_that_nobody_claims_ends_and_one_of_another_user_is_refused(etcd, client, servers):
    asker = grants.Asker(etcd.url, "mallory")
    try:
        grant = asker.get(Terms(memory=64 * MIB), 0.0)
        (address,) = grant.by_server()
        direct = DaemonClient(parse_address(address))
        with pytest.raises(rgpu.errors.AuthenticationError, match="mallory"):
            direct.request(Terms(memory=64 * MIB).on((0,)), promised=grant.lease(address), revision=grant.revision)
        direct.close()
        wait_until(lambda: not held(client), 15, 0.1)
    finally:
        asker.close()


def test_killing_the_holder_frees_the_lease_and_wakes_who_waits(etcd, client, servers):
    """Within 12 s, at a grace time of 8."""
    holder = subprocess.Popen(
        [sys.executable, "-c", "import rgpu, time; rgpu.arange(3).sum(); print('held', flush=True); time.sleep(60)"],
        env={**os.environ, "RGPU_SERVERS": "", "RGPU_REGISTRY": etcd.url, "RGPU_GPUS": "2", "RGPU_MEMORY": "64MiB"},
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with borrowed(etcd, wait=20, count=2, memory=64 * MIB):
            assert time.monotonic() - began < 12
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_etcd_is_killed_and_restarted_under_load(etcd, client, servers):
    """What runs goes on, what is new says what is wrong, and then it heals; never is more lent than there is."""
    outcomes, over = [], threading.Event()

    def load():
        while not over.is_set():
            try:
                with borrowed(etcd, memory=24 * MIB):
                    outcomes.append("lent")
            except RegistryUnavailable as error:
                assert "RGPU_REGISTRY" in str(error) or "no server" in str(error)
                outcomes.append("unavailable")
                time.sleep(0.05)
            except (ServerBusy, ServerUnavailable, LeaseEnded):
                outcomes.append("busy")
                time.sleep(0.05)

    pool = rgpu.connect(registry=etcd.url, gpus=1, memory="24MiB")
    threads = [threading.Thread(target=load) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: outcomes.count("lent") > 10, 20)
        etcd.kill()
        wait_until(lambda: outcomes.count("unavailable") > 3, 20)
        assert int(rgpu.arange(1000).sum()) == 499500
        etcd.start()
        before = outcomes.count("lent")
        wait_until(lambda: outcomes.count("lent") > before + 10, 30)
        etcd.kill()
        etcd.wipe()
        etcd.start()
        before = outcomes.count("lent")
        wait_until(lambda: outcomes.count("lent") > before + 10, 30)
        assert int(rgpu.arange(1000).sum()) == 499500 and pool.devices
        wait_until(lambda: len(books(client)) == 2)
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
        rgpu.close()
    wait_until(lambda: not held(client), 20)


def test_askers_never_get_the_same_part_twice(etcd, client):
    """Four at once, on books of servers that are not there: only the transactions keep them apart."""
    lease = client.lease(60)
    for number in range(3):
        about = {"devices": [{"memory_total": 8, "index": 0}]}
        client.put(f"{directory.SERVERS}s{number}:1", about, lease)
        client.put(f"{directory.BOOKS}s{number}:1", {"leases": {}}, lease)
    got, lock = [], threading.Lock()

    def ask(name):
        asker = grants.Asker(etcd.url, name)
        try:
            while True:
                grant = asker.get(Terms(2, memory=1), 0.0)
                with lock:
                    got.append(grant)
        except ServerBusy as error:
            assert "at the same time" not in str(error)
        finally:
            asker.close()

    threads = [threading.Thread(target=ask, args=(f"user{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for address, leases in books(client).items():
        assert sum(lease["parts"]["0"] for lease in leases.values()) <= 8, address
        assert {grants.name_of(g.lease(address)) for g in got if address in g.by_server()} == set(leases)
    assert len(got) == 12 and sorted(len(leases) for leases in books(client).values()) == [8, 8, 8]
