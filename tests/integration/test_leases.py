"""Parts of devices as users get them: rgpu run, request, release, drain and connect, against real servers."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import rgpu
from rgpu.client.control import DaemonClient
from rgpu.client.holding import acquire
from rgpu.config import load_client, parse_address, parse_quotas
from rgpu.errors import LeaseEnded, NoSuchDevice, QuotaExceeded, ServerBusy, ServerDraining, SessionExpired
from rgpu.leases.terms import Terms
from tests.support.load import PROGRAM
from tests.support.servers import Server
from tests.support.waiting import wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def servers():
    """Two servers with two devices of 64 MiB each."""
    with (
        Server("cpu:2", "one", "--device-memory", "64MiB", "--labels", "zone=a") as first,
        Server("cpu:2", "two", "--device-memory", "64MiB", "--labels", "zone=b") as second,
    ):
        yield first, second


@pytest.fixture
def daemons(servers):
    clients = [DaemonClient(parse_address(server.address)) for server in servers]
    yield clients
    for client in clients:
        client.close()


def leases(daemon):
    return [lease for device in daemon.snapshot()["devices"] for lease in device["leases"]]


@pytest.fixture
def command(servers, tmp_path):
    def run(*arguments, check=None, **environment):
        pool = ",".join(server.address for server in servers)
        env = dict(os.environ) | {"RGPU_SERVERS": pool, "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "rgpu.cli", *arguments],
            env={**env, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert check is None or done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    return run


class TestConnect:
    def connect(self, servers, **wishes):
        return rgpu.connect(*[server.address for server in servers], **wishes)

    def test_memory_is_bounded_to_the_byte(self, servers, daemons):
        self.connect(servers, gpus=1, memory="16MiB", filters=["server=two"])
        try:
            assert rgpu.cuda.runtime.memGetInfo() == (16 * MIB, 16 * MIB)
            assert rgpu.cuda.runtime.getDeviceProperties(0)["totalGlobalMem"] == 16 * MIB
            first = rgpu.zeros(16 * MIB - 8192, "u1")
            last = rgpu.zeros(8192, "u1")
            rgpu.cuda.Device().synchronize()
            assert rgpu.cuda.runtime.memGetInfo() == (0, 16 * MIB)
            with pytest.raises(rgpu.cuda.memory.OutOfMemoryError) as caught:
                rgpu.zeros(1, "u1").item()
            told = "allocating 512 bytes (allocated so far: 16,777,216 bytes, limit set to: 16,777,216 bytes)"
            assert told in str(caught.value)
            del last
            assert rgpu.zeros(8192, "u1")[3].item() == 0 == first[0].item()
            (lease,) = leases(daemons[1])
            assert (lease["memory"], lease["sessions"]) == (16 * MIB, 1) and leases(daemons[0]) == []
        finally:
            rgpu.close()
        assert leases(daemons[1]) == []

    def test_all_or_none_over_several_servers(self, servers, daemons):
        blocker = daemons[1].request(Terms(memory=40 * MIB))
        try:
            with pytest.raises(ServerBusy, match="4 devices, 32 MiB of each asked for, and 3 can be had now"):
                self.connect(servers, gpus=4, memory="32MiB")
            assert leases(daemons[0]) == [] and len(leases(daemons[1])) == 1
            self.connect(servers, gpus=3, memory="32MiB")
            assert rgpu.cuda.runtime.getDeviceCount() == 3
            rgpu.close()
            self.connect(servers, gpus=2, memory="50%", placement="same-host")
            assert len(leases(daemons[0])) == 2 and leases(daemons[0])[0]["memory"] == 32 * MIB
        finally:
            rgpu.close()
            daemons[1].give_back(blocker.lease)
        assert leases(daemons[0]) == leases(daemons[1]) == []

    def test_filters(self, servers):
        self.connect(servers, gpus=2, filters=["label.zone=b", "memory>=64MiB", "kind=cpu"])
        try:
            assert {d.info["server"] for d in rgpu.client.pool.get().devices} == {"two"}
        finally:
            rgpu.close()
        with pytest.raises(NoSuchDevice, match="1 devices that fit name=H100 are asked for, and there are 0"):
            self.connect(servers, filters=["name=H100"])

    def test_visible_devices_as_cuda_has_them(self, servers):
        uuids = [d.info["uuid"] for d in self.connect(servers).devices]
        try:
            for shown, expected in [
                ("2,0", [2, 0]),
                (uuids[3], [3]),
                (f"1,{uuids[2][:12]}", [1, 2]),
                ("1,9,0", [1]),  # what follows an entry that names none is not seen
                ("3,-1,0", [3]),
            ]:
                pool = self.connect(servers, visible_devices=shown)
                assert [uuids.index(d.info["uuid"]) for d in pool.devices] == expected
            for shown in ("-1", "", "0,0", "CPU-", "9", "GPU-0000"):
                with pytest.raises(NoSuchDevice, match="shows no device"):
                    self.connect(servers, visible_devices=shown)
        finally:
            rgpu.close()

    def test_local_and_remote_in_one_pool(self, servers):
        pool = rgpu.connect(servers[0].address, "local", local_devices="cpu:1")
        try:
            assert [d.info["server"] for d in pool.devices] == ["one", "one", "local"]
            with rgpu.cuda.Device(2):
                there = rgpu.arange(5)
            assert rgpu.asnumpy(rgpu.asarray(there) + 1).tolist() == [1, 2, 3, 4, 5]
        finally:
            rgpu.close()

    def test_what_is_left_is_shared_and_never_lent_twice(self, servers, daemons):
        held = daemons[0].request(Terms(memory=40 * MIB, devices=(0,)))
        rgpu.connect(servers[0].address)
        try:
            first = rgpu.zeros(20 * MIB, "u1")
            rgpu.cuda.Device().synchronize()
            with pytest.raises(rgpu.cuda.memory.OutOfMemoryError, match="limit set to: 25,165,824 bytes"):
                rgpu.zeros(5 * MIB, "u1")[0].item()
            with pytest.raises(ServerBusy):
                daemons[0].request(Terms(memory=4 * MIB + 1, devices=(0,)))
            assert rgpu.cuda.runtime.memGetInfo()[0] == 4 * MIB
            del first
            assert rgpu.zeros(24 * MIB, "u1")[-1].item() == 0
        finally:
            rgpu.close()
            daemons[0].give_back(held.lease)


class TestRun:
    SEES = "import cupy as cp; print(cp.cuda.runtime.getDeviceCount(), cp.cuda.runtime.memGetInfo()[1] >> 20)"

    def test_run_leases_and_gives_back(self, command, daemons):
        done = command("run", "-v", "-n", "2", "-m", "8MiB", "-p", "0.25", "--", "python", "-c", self.SEES, check=0)
        assert done.stdout == "2 8\n" and "rgpu: lease " in done.stderr
        wait_until(lambda: not leases(daemons[0]) and not leases(daemons[1]))

    def test_exit_codes(self, command):
        assert command("run", "-n", "2", "--", "python", "-c", "raise SystemExit(7)").returncode == 7
        assert "there are 4" in command("run", "-n", "5", "--", "true", check=2).stderr
        assert "the largest has 64 MiB" in command("run", "-m", "1GiB", "--", "true", check=2).stderr
        assert "refused" in command("run", "-n", "1", "--", "true", check=69, RGPU_SERVERS="127.0.0.1:1").stderr
        assert "no fact 'colour'" in command("run", "-n", "1", "--filter", "colour=red", "--", "true", check=2).stderr
        assert "a share of a device" in command("run", "-p", "2", "--", "true", check=2).stderr

    def test_a_killed_holder_gives_back_at_once(self, command, servers, daemons):
        code = "import sys, signal; print('here', flush=True); signal.pause()"
        with subprocess.Popen(
            [sys.executable, "-m", "rgpu.cli", "run", "-n", "1", "-m", "8MiB", "--", "python", "-c", code],
            env=dict(os.environ) | {"RGPU_SERVERS": servers[0].address},
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            try:
                assert child.stdout.readline() == "here\n"
                assert len(leases(daemons[0])) == 1
            finally:
                child.send_signal(signal.SIGKILL)
        wait_until(lambda: not leases(daemons[0]), timeout=12)

    def test_waiting_in_the_queue(self, command, daemons):
        wait_until(lambda: not leases(daemons[0]) and not leases(daemons[1]))  # what the test before held
        held = [daemon.request(Terms(count=2, memory=60 * MIB)) for daemon in daemons]
        try:
            done = command("run", "-n", "1", "-m", "8MiB", "--", "true", check=75)
            assert "none can be had now" in done.stderr
            done = command("run", "-n", "1", "-m", "8MiB", "--wait-for", "0.5s", "--", "true", check=75)
            assert "place 1 of 1 in the queue" in done.stderr and "in the queue were not enough" in done.stderr
        finally:
            for daemon, lease in zip(daemons, held):
                daemon.give_back(lease.lease)

    def test_request_and_release(self, command, daemons, tmp_path):
        asked = command("request", "-n", "2", "-m", "8MiB", "--for", "1h", "--print", check=0)
        assert asked.stdout.startswith("export RGPU_LEASE='127.0.0.1:")
        lease = asked.stdout.split("'")[1]
        inside = {"RGPU_LEASE": lease}
        for _ in range(2):
            assert command("run", "--", "python", "-c", self.SEES, **inside).stdout == "2 8\n"
        assert command("run", "-n", "1", "--", "python", "-c", self.SEES, **inside).stdout == "1 8\n"
        assert "a lease already" in command("run", "-m", "4MiB", "--", "true", check=2, **inside).stderr
        assert "a lease already" in command("request", "-n", "1", check=2, **inside).stderr
        assert "there is no lease 0123" in command("release", "0123", check=2).stderr
        assert "is given back" in command("release", check=0, **inside).stderr
        assert not leases(daemons[0]) and not leases(daemons[1])
        assert "the lease is over: given back" in command("run", "--", "python", "-c", self.SEES, **inside).stderr

    def test_request_starts_a_shell(self, command, daemons, tmp_path):
        shell = tmp_path / "shell"
        shell.write_text(f"#!/bin/sh\npython -c '{self.SEES}'\npython -c '{self.SEES}'\n")
        shell.chmod(0o755)
        assert command("request", "-m", "8MiB", check=0, SHELL=str(shell)).stdout == "1 8\n1 8\n"
        wait_until(lambda: not leases(daemons[0]) and not leases(daemons[1]))
        assert command("request", "-n", "1", "--print").returncode == 2


class TestServer:
    def test_quotas_idle_leases_and_draining(self, capfd):
        user = rgpu.client.control.user_name()
        quota = f"{user}:memory=48MiB"
        assert parse_quotas(quota)
        with Server("cpu:1", "q", "--device-memory", "64MiB", "--quotas", quota, "--idle-timeout", "20s") as server:
            daemon = DaemonClient(parse_address(server.address))
            try:
                rgpu.connect(server.address, gpus=1, memory="40MiB")
                a = rgpu.arange(10)
                with pytest.raises(QuotaExceeded, match="48 MiB of memory; 40 MiB are held and 16 MiB asked for"):
                    daemon.request(Terms(memory=16 * MIB))
                wait_until(lambda: not leases(daemon), timeout=60)
                with pytest.raises(SessionExpired, match="idle for more than 20 s"):
                    wait_until(lambda: a.sum().item() == 0, timeout=10)
                assert "will be given back in" in capfd.readouterr().err
                rgpu.close()
                drained = daemon.drain(True)
                assert drained.leases == 0 and daemon.snapshot()["draining"]
                with pytest.raises(ServerDraining):
                    daemon.attach(0)
                daemon.drain(False)
                daemon.release(daemon.attach(0).session)
            finally:
                rgpu.close()
                daemon.close()

    def test_a_lease_has_its_time(self, servers, daemons):
        lease = daemons[0].request(Terms(memory=MIB, seconds=0.5))
        wait_until(lambda: not leases(daemons[0]))
        with pytest.raises(LeaseEnded, match="the time of the lease is over"):
            daemons[0].renew(lease.lease)

    def test_two_holders_who_want_everything_both_get_it(self, servers, daemons):
        """Each wants what the other may have half of; asking in one order, they cannot block each other."""
        import threading

        got, errors = [], []

        def want():
            mine = [DaemonClient(daemon.address) for daemon in daemons]
            try:
                parts = acquire(mine, Terms(count=4, memory=40 * MIB), wait=30)
                got.append(parts)
                for part in parts:
                    next(d for d in mine if d.address == part.address).give_back(part.lease)
            except Exception as error:
                errors.append(error)
            finally:
                for daemon in mine:
                    daemon.close()

        threads = [threading.Thread(target=want) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not errors and len(got) == 2

    def test_shares_of_compute_are_kept_and_idleness_is_not_paid_for(self):
        with Server("cpu:1", "s", "--device-memory", "64MiB", "--grace", "3") as server:
            daemon = DaemonClient(parse_address(server.address))

            def commands():
                return {s["pid"]: s["commands"] for d in daemon.snapshot()["devices"] for s in d["sessions"]}

            def measure(*programs):
                """The parts of the commands that each program got done."""
                started = [
                    subprocess.Popen(
                        [sys.executable, "-c", PROGRAM, kind],
                        env=dict(os.environ) | {"RGPU_SERVERS": server.address, "RGPU_COMPUTE": share},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                    for share, kind in programs
                ]
                try:
                    for process in started:
                        process.stdout.readline()
                    time.sleep(1.5)  # until both are at full speed and the daemon has heard of it
                    before = commands()
                    time.sleep(5)
                    after = commands()
                    done = [after[p.pid] - before[p.pid] for p in started]
                    return [part / sum(done) for part in done]
                finally:
                    for process in started:
                        process.kill()
                        process.communicate()
                    wait_until(lambda: not leases(daemon), timeout=30)

            try:
                # Some thirty commands are counted, on a machine that others use: one of three looks must be right.
                looks = (measure(("0.75", "busy"), ("0.25", "busy"))[0] for _ in range(3))
                assert any(look == pytest.approx(0.75, abs=0.075) for look in looks)
                assert measure(("0.75", "idle"), ("0.25", "busy"))[1] > 0.99
            finally:
                daemon.close()


class TestOversubscription:
    def test_three_times_the_memory_of_the_device(self, tmp_path):
        """Arrays and views of them, on a device that holds a third; memory of the host for half of the rest."""
        options = ("--device-memory", "16MiB", "--oversubscribe", "4", "--spill-memory", "16MiB")
        with Server("cpu:1", "over", *options, "--spill-directory", str(tmp_path)) as server:
            daemon = DaemonClient(parse_address(server.address))
            rgpu.connect(server.address)
            try:
                count, size = 24, 1 << 18  # of 2 MiB each
                arrays = [rgpu.arange(size, dtype="f8") + i for i in range(count)]
                views = [array[10:1000:7] for array in arrays]
                for array in arrays:
                    array *= 2
                for view in views:
                    view += 1
                for i, array in enumerate(arrays):
                    expected = 2 * (np.arange(size) + i)
                    expected[10:1000:7] += 1
                    assert np.array_equal(rgpu.asnumpy(array), expected)
                held = rgpu.asfortranarray(rgpu.arange(2 * size, dtype="f8").reshape(512, -1))
                assert rgpu.cuda.runtime.memGetInfo() == (64 * MIB - (count + 2) * 2 * MIB, 64 * MIB)
                together = rgpu.stack(arrays[:2])
                assert float(together.sum()) == float(arrays[0].sum() + arrays[1].sum())
                assert np.array_equal(rgpu.asnumpy(held), np.arange(2.0 * size).reshape(512, -1))
                with pytest.raises(rgpu.cuda.memory.OutOfMemoryError):
                    keep = [rgpu.zeros(size) for _ in range(9)]
                    keep[-1].sum().item()

                def spilled():
                    (device,) = daemon.snapshot()["devices"]
                    assert device["memory_used"] <= 16 * MIB
                    return sum(session["memory_spilled"] for session in device["sessions"]) >= 32 * MIB

                wait_until(spilled)
                assert float(arrays[-1][0]) == 2 * (count - 1)
            finally:
                rgpu.close()
                daemon.close()

    def test_an_idle_session_makes_room(self):
        with Server("cpu:1", "over", "--device-memory", "16MiB", "--oversubscribe", "2") as server:
            mine = load_client({"servers": server.address})
            other = rgpu.client.pool.Pool(mine)
            rgpu.connect(server.address)
            daemon = DaemonClient(parse_address(server.address))
            try:
                idle = rgpu.arange(3 << 19, dtype="f8")  # 12 MiB
                assert float(idle[-1]) == (3 << 19) - 1
                time.sleep(1.2)  # then it counts as idle
                with other.devices[0]:
                    busy = rgpu.ones(3 << 19)
                    assert float(busy.sum()) == 3 << 19
                wait_until(lambda: max(s["memory_spilled"] for s in daemon.snapshot()["devices"][0]["sessions"]) > 0)
                assert float(idle.sum()) == ((3 << 19) - 1) * (3 << 18), "unseen by the program"
                del busy, idle
            finally:
                rgpu.close()
                other.close()
                daemon.close()
