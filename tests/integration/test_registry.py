"""Servers register in etcd and clients find them there; a real etcd, stopped, wiped and started again."""

import http.server
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

import rgpu
from rgpu import config, registry, tokens
from rgpu.config import Address
from rgpu.errors import ConfigError, RegistryUnavailable
from rgpu.registry import directory
from rgpu.registry.etcd import Etcd
from tests.support.etcds import EtcdServer, free_port, needs_etcd
from tests.support.servers import Server, program
from tests.support.waiting import wait_until

pytestmark = needs_etcd

COUNT = "import rgpu as cp; print(cp.cuda.runtime.getDeviceCount(), int(cp.arange(10).sum()))"


@pytest.fixture
def etcd(tmp_path):
    with EtcdServer(tmp_path) as server:
        yield server


def registered(etcd):
    """host:port of each server, as a client finds them."""
    try:
        return [str(address) for address in directory.servers(etcd.url, 3.0)]
    except RegistryUnavailable as error:
        assert error.reason == "empty"
        return []


def serve(etcd, devices="cpu:1", *options):
    return Server(devices, "registered", "--registry", etcd.url, *options)


def without_servers(source, url, **kw):
    return program(source, RGPU_SERVERS="", RGPU_REGISTRY=url, **kw)


def test_programs_find_all_servers_and_their_devices(etcd):
    with serve(etcd, "cpu:1", "--labels", "zone=a") as one, serve(etcd, "cpu:2") as two:
        wait_until(lambda: registered(etcd) == sorted([one.address, two.address]))
        assert without_servers(COUNT, etcd.url).stdout.split() == ["3", "45"]
        client = Etcd(etcd.url)
        about = client.read(directory.SERVERS)[directory.SERVERS + one.address]
        client.close()
        (device,) = about["devices"]
        assert device["labels"] == {"zone": "a"} and about["name"] == "registered"
        assert device["kind"] == "cpu" and device["memory_lendable"] == device["memory_total"] > 0


def test_rgpu_run_leases_from_a_registered_server_and_tools_show_it(etcd):
    with serve(etcd, "cpu:2") as server:
        wait_until(lambda: registered(etcd))
        lease = ("-n", "1", "-m", "64MiB", "--", sys.executable, "-c", COUNT)
        run = without_servers("run", etcd.url, launcher=("-m", "rgpu.cli"), arguments=lease)
        assert run.stdout.split() == ["1", "45"]
        listed = without_servers("list", etcd.url, launcher=("-m", "rgpu.cli"))
        assert server.address in listed.stdout
        assert "registered" in without_servers("--json", etcd.url, launcher=("-m", "rgpu.smi")).stdout


def test_named_servers_count_more_than_the_registry(etcd):
    with serve(etcd, "cpu:3"), Server("cpu:1") as named:
        wait_until(lambda: registered(etcd))
        assert program(COUNT, named, RGPU_REGISTRY=etcd.url).stdout.split() == ["1", "45"]


def test_connect_takes_a_registry_in_place_of_the_named_servers(etcd, monkeypatch):
    monkeypatch.setenv("RGPU_SERVERS", f"127.0.0.1:{free_port()}")
    with serve(etcd) as server:
        wait_until(lambda: registered(etcd))
        pool = rgpu.connect(registry=etcd.url)
        try:
            assert [str(daemon.address) for daemon in pool.daemons] == [server.address]
        finally:
            rgpu.close()


def test_an_entry_goes_with_its_server(etcd):
    """At once when it is stopped, after its time when it is killed."""
    with serve(etcd) as stopped, serve(etcd) as killed:
        wait_until(lambda: len(registered(etcd)) == 2)
        stopped.stop()
        assert registered(etcd) == [killed.address]
        killed.kill()
        wait_until(lambda: not registered(etcd), directory.TTL + 10, 0.2)


def test_sessions_go_on_without_etcd_and_servers_come_back_to_an_empty_one(etcd):
    with serve(etcd) as server:
        wait_until(lambda: registered(etcd))
        pool = rgpu.connect(registry=etcd.url)
        try:
            array = rgpu.arange(1000)
            assert int(array.sum()) == 499500
            etcd.kill()
            assert int((array * 2).sum()) == 999000  # the session that there was
            with pytest.raises(RegistryUnavailable, match=re.escape(etcd.url)):
                rgpu.connect(registry=etcd.url)  # a new pool
            assert pool.devices and int((array * 3).sum()) == 1498500  # a failed connect takes nothing away
            etcd.wipe()
            etcd.start()
            assert registered(etcd) == [] or registered(etcd) == [server.address]
            wait_until(lambda: registered(etcd) == [server.address], 20, 0.1)
            assert int((array * 4).sum()) == 1998000
        finally:
            rgpu.close()


def test_a_server_starts_and_stops_without_etcd(etcd):
    etcd.kill()
    with serve(etcd) as server:
        assert program(COUNT, server).stdout.split() == ["1", "45"]
        etcd.start()
        wait_until(lambda: registered(etcd) == [server.address], 20, 0.1)
        etcd.kill(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def test_the_member_that_lives_is_found(etcd):
    url = f"etcd://127.0.0.1:{free_port()},127.0.0.1:{etcd.port}"
    with Server("cpu:1", "registered", "--registry", url) as server:
        wait_until(lambda: registered(etcd) == [server.address])
        assert without_servers(COUNT, url).stdout.split() == ["1", "45"]


def test_what_is_advertised_is_what_clients_get(etcd):
    with serve(etcd, "cpu:1", "--advertise", "localhost") as server:
        port = server.address.rpartition(":")[2]
        wait_until(lambda: registered(etcd) == [f"localhost:{port}"])
        assert without_servers(COUNT, etcd.url).stdout.split() == ["1", "45"]


def test_foreign_entries_are_passed_over(etcd):
    with serve(etcd) as server:
        wait_until(lambda: registered(etcd))
        client = Etcd(etcd.url)
        lease = client.lease(60)
        client.put(directory.SERVERS + "no address: at all", {}, lease)
        client.put(directory.SERVERS.rstrip("/") + "-of-others", {}, lease)
        assert registered(etcd) == [server.address]
        client.revoke(lease)
        client.revoke(lease)  # harmless
        with pytest.raises(RegistryUnavailable):
            client.put(directory.SERVERS + "late", {}, lease)
        assert not client.keep(lease)
        client.close()


def test_who_has_tokens_never_talks_openly_with_a_server_that_was_found(etcd, tmp_path, monkeypatch):
    client = Etcd(etcd.url)
    client.put(directory.SERVERS + "127.0.0.1:1", {}, client.lease(60))
    client.close()
    settings = config.load_client({"registry": etcd.url}, environ={}, files=[])
    assert registry.servers(settings) == (Address("127.0.0.1", 1),)  # no keys at all
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "rgpu").mkdir()
    key, path = "k" * tokens.KEY_CHARACTERS, tmp_path / "rgpu" / "alice.rgpu"
    tokens.save(tokens.Token("alice", key, key, key, (Address("127.0.0.1", 2),)), path)
    with pytest.raises(ConfigError, match=r"no token is for 127\.0\.0\.1:1.*RGPU_TOKEN"):
        registry.servers(settings)
    monkeypatch.setenv("RGPU_TOKEN", str(path))
    assert registry.servers(settings) == (Address("127.0.0.1", 1),)


def test_errors_say_what_is_wrong_and_what_to_do(etcd):
    done = without_servers(COUNT, etcd.url, check=False)
    assert done.returncode and "no server is registered" in done.stderr and "--registry" in done.stderr
    listed = without_servers("list", etcd.url, launcher=("-m", "rgpu.cli"), check=False)
    assert listed.returncode == 69 and listed.stderr.count("\n") == 1
    assert without_servers("-L", etcd.url, launcher=("-m", "rgpu.smi"), check=False).returncode == 9
    etcd.kill()
    done = without_servers(COUNT, etcd.url, check=False)
    assert done.returncode and f"127.0.0.1:{etcd.port}: refused" in done.stderr and "RGPU_REGISTRY" in done.stderr
    health = without_servers("health", etcd.url, launcher=("-m", "rgpu.cli"), check=False)
    assert health.returncode == 1 and "cannot be used" in health.stdout


def test_a_silent_address_costs_the_connect_timeout_and_no_more():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = config.load_client(
            {"registry": f"etcd://127.0.0.1:{silent.getsockname()[1]}", "connect_timeout": 0.3}, environ={}, files=[]
        )
        with pytest.raises(RegistryUnavailable, match="no answer"):
            registry.servers(settings)


def test_another_web_server_is_not_taken_for_etcd():
    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.text)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as page:
        thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            for page.text in (b"<html>", b"[]", b'{"kvs": [{}]}', b'{"kvs": 7}'):
                with pytest.raises(RegistryUnavailable, match="etcd"):
                    directory.servers(f"etcd://127.0.0.1:{page.server_port}", 2.0)
        finally:
            page.shutdown()
            thread.join()


def test_a_daemon_that_a_program_starts_for_itself_is_not_registered(etcd):
    source = "import os, rgpu; rgpu.arange(3).sum(); print(rgpu.cuda.runtime.getDeviceCount())"
    program(source, "local", RGPU_REGISTRY=etcd.url, RGPU_LOCAL_DEVICES="cpu:1")
    assert registered(etcd) == []


def test_a_registry_that_is_none_is_refused():
    command = [sys.executable, "-m", "rgpu.server", "--registry", "http://h:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "etcd://host1:2379" in done.stderr
