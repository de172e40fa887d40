"""Keys from every side: who gets in, who does not and is told why, what is cut off, who sees what."""

import errno
import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zmq

from rgpu import errors, tokens
from rgpu.client import pool
from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from rgpu.link import curve, seal, shm, ucx
from rgpu.server import keys
from rgpu.wire import control
from rgpu.wire.codec import pack
from tests.support.daemons import Talk
from tests.support.leaks import children
from tests.support.servers import Server, near, only_zmq, program
from tests.support.waiting import wait_until


class Protected:
    """A server with keys on every address, and a way to make tokens for it."""

    def __init__(self, folder, *options):
        keys.init(folder / "keys")
        self.folder, self.ring = folder, keys.KeyRing(folder / "keys")
        options = ("--keys", str(folder / "keys"), "--bind", "0.0.0.0", "--grace", "2", *options)
        self.server = Server("cpu:2", "guarded", *options)
        self.address = parse_address(f"127.0.0.1:{self.server.address.rpartition(':')[2]}")

    def token(self, user, **limits):
        person, token = self.ring.create(user, (self.address,), **limits)
        path = self.folder / f"{person.id}.rgpu"
        tokens.save(token, path)
        return person, token.but(path=str(path))

    def client(self, token):
        return DaemonClient(self.address, timeout=30, token=token)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    protected = Protected(tmp_path_factory.mktemp("guarded"))
    yield protected
    protected.server.stop()


@pytest.fixture(scope="module")
def alice(guarded):
    return guarded.token("alice")


@pytest.fixture
def works(guarded, alice):
    """After whatever a test did, somebody with a key gets a right answer."""
    yield
    client = guarded.client(alice[1])
    lease = client.attach(0)
    talk = Talk(lease)
    talk.sync(30)
    talk.bye()
    client.close()


def test_a_program_with_a_token(guarded, alice):
    source = "import rgpu as cp; print(cp.arange(5.0).sum())"
    done = program(source, RGPU_SERVERS="", RGPU_TOKEN=alice[1].path)
    assert done.stdout.startswith("10.0")
    done = program(source, guarded.server.address.replace("0.0.0.0", "127.0.0.1"), RGPU_TOKEN=alice[1].path)
    assert done.stdout.startswith("10.0")


def test_data_both_ways_under_keys(guarded, alice, monkeypatch):
    import rgpu as cp

    monkeypatch.setenv("RGPU_TOKEN", alice[1].path)
    cp.connect(str(guarded.address))
    try:
        host = np.random.default_rng(3).random(1 << 20)
        np.testing.assert_array_equal((cp.asarray(host) * 2).get(), host * 2)
        assert cp.cuda.Device(0).mem_info[1] > 0
    finally:
        cp.close()


SEALED = ["tcp", *([] if shm.missing() else ["shm"])]


@pytest.mark.skipif(only_zmq(), reason="RGPU_LINKS=zmq: there is no link to seal, CURVE protects this one")
@pytest.mark.skipif(bool(seal.missing()), reason=seal.missing() or "sealing works here")
@pytest.mark.parametrize("kind", SEALED)
def test_under_keys_data_take_sealed_links(guarded, alice, monkeypatch, kind):
    import rgpu as cp

    monkeypatch.setenv("RGPU_TOKEN", alice[1].path)
    monkeypatch.delenv("RGPU_LINK", raising=False)  # each kind in turn, the last one because it is the best
    cp.connect(str(guarded.address), **({} if kind == SEALED[-1] else {"link": kind}))
    try:
        link = pool.current_stream().connection.link
        host = np.random.default_rng(3).random(1 << 18)
        np.testing.assert_array_equal((cp.asarray(host) * 2).get(), host * 2)
        assert link.kind == kind
        link._drop()  # the network is gone for a moment: the next connection has other keys
        np.testing.assert_array_equal((cp.asarray(host) + 1).get(), host + 1)
        assert cp.stats()["bytes_sent"] > 2 * host.nbytes
    finally:
        cp.close()


def test_who_has_no_cryptography_library_takes_curve(guarded, alice):
    source = (
        "import rgpu as cp; from rgpu.client import pool; cp.ones(3).get();"
        "print(pool.current_stream().connection.link.kind)"
    )
    where = guarded.server.address.replace("0.0.0.0", "127.0.0.1")
    done = program(source, where, RGPU_TOKEN=alice[1].path, RGPU_CRYPTO_LIB="/none/here", RGPU_LINK="")
    assert done.stdout == "zmq\n" and not done.stderr


def test_init_makes_the_keys_that_the_setting_names(tmp_path):
    """As in the server's image, where the variable names the volume."""
    environment = os.environ | {"RGPU_KEYS": str(tmp_path / "volume")}
    command = [sys.executable, "-m", "rgpu.server", "init"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "volume" / keys.SERVER_KEY).is_file(), done.stderr


def test_data_in_the_clear_are_never_so_silently(tmp_path):
    keys.init(tmp_path / "keys")
    command = ["--devices", "cpu:1", "--port", "0", "--keys", str(tmp_path / "keys"), "--data", "clear"]
    command += ["--links", "tcp"]  # whatever this run's servers offer: ZeroMQ's own are never in the clear
    process = subprocess.Popen(
        [sys.executable, "-m", "rgpu.server", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            address = process.stdout.readline().partition("tcp://")[2].split()[0]
            _, token = keys.KeyRing(tmp_path / "keys").create("bob", (parse_address(address),))
            tokens.save(token, tmp_path / "bob.rgpu")
            source = "import rgpu as cp; print(cp.ones(3).sum())"
            done = program(source, address, RGPU_TOKEN=str(tmp_path / "bob.rgpu"), RGPU_LINK="tcp")
        finally:
            process.terminate()
            said = process.stderr.read()
    assert done.stdout == "3.0\n" and "WARNING" in done.stderr and 'data = "clear"' in done.stderr
    assert 'WARNING: data = "clear"' in said


def refusal(guarded, token, where=None):
    client = DaemonClient(where or guarded.address, timeout=30, token=token)
    try:
        with pytest.raises(errors.AuthenticationError) as caught:  # an answer; a time limit has another class
            client.hello()
        return str(caught.value)
    finally:
        client.close()


def test_everybody_without_the_right_key_is_told_so(guarded, alice, works, tmp_path):
    _, token = alice
    assert "asks for a key, and there is no token for it" in refusal(guarded, None)
    stranger = curve.new_pair()
    unknown = token.but(public_key=stranger.public, secret_key=stranger.secret)
    assert "does not accept the key" in refusal(guarded, unknown)
    assert "has another key than the one in the token" in refusal(
        guarded, token.but(server_key=curve.new_pair().public)
    )
    stolen_half = token.but(secret_key=stranger.secret)  # a public key is no secret, and not enough
    assert "key" in refusal(guarded, stolen_half)
    expired = guarded.token("late", expires=datetime.now(UTC) - timedelta(seconds=1))[1]
    assert "expired" in refusal(guarded, expired)
    with Server("cpu:1", "open") as open_server:
        assert "runs without keys" in refusal(guarded, token, parse_address(open_server.address))


@pytest.mark.parametrize("mechanism", ["null", "plain", "unknown key"])
def test_not_one_byte_of_a_stranger_reaches_the_application(guarded, mechanism, works):
    """A ROUTER answers every request that it decodes, be it with a refusal: silence means nothing was."""
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    if mechanism == "plain":
        sock.plain_username, sock.plain_password = b"root", b"x"
    if mechanism == "unknown key":
        sock.curve_publickey, sock.curve_secretkey = zmq.curve_keypair()
        sock.curve_serverkey = guarded.ring.pair.public.encode()
    sock.connect(guarded.address.uri)
    try:
        sock.send_multipart([b"1", pack(control.Snapshot.encode())])
        assert not sock.poll(700)
    finally:
        context.destroy(0)


def test_a_worker_opens_to_its_own_client_only(guarded, alice, works):
    """Another person with a good key, who knows port, public key and session, is not let in."""
    mallory = guarded.token("mallory")[1]
    client = guarded.client(alice[1])
    lease = client.attach(0)
    thief = Talk(replace(lease, token=mallory.but(server_key=lease.key)))
    open_thief = Talk(replace(lease, token=None))
    talk = Talk(lease)
    talk.sync(30)
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        for one in (thief, open_thief):
            one.connection.pump()
            assert one.connection.down_since is not None
        time.sleep(0.02)
    for one in (thief, open_thief):
        one.connection.abort()
    talk.bye()
    client.close()


def ended(talk, within):
    """How long until the worker is gone."""
    begin = time.monotonic()

    def down():
        talk.connection.pump()
        return talk.connection.down_since is not None

    wait_until(down, timeout=within)
    return time.monotonic() - begin


def test_revoked_while_connected(guarded, works):
    person, token = guarded.token("bob")
    client = guarded.client(token)
    talk = Talk(client.attach(0))
    talk.sync(30)
    guarded.ring.revoke(person)
    assert ended(talk, 30) < 15  # 2 s and what a busy machine adds
    with pytest.raises(errors.AuthenticationError, match="revoked"):
        client.snapshot()  # over the connection that is still there
    client.close()
    talk.connection.abort()
    assert "does not accept the key" in refusal(guarded, token)


def test_expired_while_connected(guarded, works):
    person, token = guarded.token("carol")
    client = guarded.client(token)
    talk = Talk(client.attach(0))
    talk.sync(30)  # on a busy machine it takes longer to get here than any time that this test could wait for
    entry, later = guarded.ring.folder / keys.CLIENTS / f"{person.id}.toml", guarded.folder / "later"
    soon = datetime.now(UTC) + timedelta(seconds=1)
    later.write_text(f"{entry.read_text()}expires = {soon.isoformat()}\n")
    os.replace(later, entry)
    assert ended(talk, 30) < 20
    with pytest.raises(errors.AuthenticationError):
        client.hello()
    client.close()
    talk.connection.abort()


def test_a_program_hears_that_its_token_was_revoked(guarded, monkeypatch):
    import rgpu as cp

    person, token = guarded.token("dora")
    monkeypatch.setenv("RGPU_TOKEN", token.path)
    cp.connect(str(guarded.address))
    try:
        a = cp.ones(3)
        a.get()
        guarded.ring.revoke(person)
        with pytest.raises(errors.AuthenticationError, match="key|token"):
            for _ in range(100):
                (a + 1).get()
                time.sleep(0.05)
    finally:
        cp.close()


def no_sessions(client):
    """Those of the tests before end within their grace, and what a busy machine adds."""
    wait_until(lambda: not any(device["sessions"] for device in client.snapshot()["devices"]), 60, every=0.1)


def test_users_see_and_end_only_their_own_sessions(guarded, alice):
    bob, root = guarded.token("bob")[1], guarded.token("root", admin=True)[1]
    clients = {name: guarded.client(t) for name, t in (("alice", alice[1]), ("bob", bob), ("root", root))}
    no_sessions(clients["root"])
    leases = {name: clients[name].attach(0) for name in ("alice", "bob")}

    def seen(name):
        return {s["user"] for device in clients[name].snapshot()["devices"] for s in device["sessions"]}

    assert seen("alice") == {"alice", "-"} and seen("bob") == {"bob", "-"}
    assert {"alice", "bob"} <= seen("root")
    (other,) = [
        s for d in clients["alice"].snapshot()["devices"] for s in d["sessions"] if s["user"] == "-" and d["index"] == 0
    ]
    assert (other["program"], other["host"], other["pid"], other["worker_pid"]) == ("-", "-", 0, 0)
    for ask in ("release", "session_state"):
        with pytest.raises(errors.AuthenticationError, match="somebody else"):
            getattr(clients["bob"], ask)(leases["alice"].session)
    assert clients["alice"].session_state(leases["alice"].session) == "alive"
    clients["root"].release(leases["alice"].session)
    clients["bob"].release(leases["bob"].session)
    assert clients["alice"].session_state(leases["alice"].session).startswith("dead")
    for client in clients.values():
        client.close()


def test_what_a_client_says_it_is_counts_for_nothing(guarded, alice):
    """The user is the one of the key, whatever the message says."""
    client = guarded.client(alice[1])
    no_sessions(client)
    lease = client.attach(1)
    (session,) = [
        s for d in client.snapshot()["devices"] for s in d["sessions"] if s["memory_used"] == 0 and d["index"] == 1
    ]
    assert session["user"] == "alice"
    client.release(lease.session)
    client.close()


def test_limits_of_a_token(guarded):
    _, token = guarded.token("small", memory=64 << 20, devices=1)
    client = guarded.client(token)
    lease = client.attach(0)
    assert lease.device["memory_total"] == 64 << 20
    with pytest.raises(errors.QuotaExceeded, match="64 MiB of one device"):
        client.attach(0)
    with pytest.raises(errors.QuotaExceeded, match="allows 1 devices"):
        client.attach(1)
    client.release(lease.session)
    client.release(client.attach(1).session)
    client.close()


# Before a server runs


def start(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "rgpu.server", "--devices", "cpu:1", "--port", "0", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_no_address_but_loopback_without_keys(tmp_path):
    done = start("--bind", "0.0.0.0", "--keys", "none")
    assert done.returncode == 2 and "rgpu-server init" in done.stderr and done.stderr.count("\n") == 1
    done = start("--bind", "0.0.0.0", "--keys", str(tmp_path))
    assert done.returncode == 2 and "there is no server key" in done.stderr


def test_a_server_key_that_others_can_read_is_refused(tmp_path):
    keys.init(tmp_path / "keys")
    path = tmp_path / "keys" / keys.SERVER_KEY
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    done = start("--keys", str(tmp_path / "keys"))
    assert done.returncode == 2 and f"chmod 600 {path}" in done.stderr


def listening(pid):
    """The addresses on which a process listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_by_default_every_socket_is_on_loopback():
    with Server("cpu:1", "closed") as server:
        wait_until(lambda: any(listening(pid) for pid in children(server.pid)))
        for pid in [server.pid, *children(server.pid)]:
            assert listening(pid) <= {"0100007F", "00000000000000000000000001000000"}


def test_insecure_is_said_loudly():
    process = subprocess.Popen(
        [sys.executable, "-m", "rgpu.server", "--devices", "cpu:1", "--port", "0", "--bind", "0.0.0.0"]
        + ["--keys", "none", "--insecure", "--prestart", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
    assert "WARNING: --insecure" in lines[0] and "no keys" in lines[1]


# The commands


def rgpu(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "rgpu.cli", *arguments], capture_output=True, text=True, timeout=30,
        env=os.environ | environment,
    )  # fmt: skip


def test_the_life_of_a_token(tmp_path):
    folder, output = str(tmp_path / "k"), tmp_path / "alice.rgpu"
    made = subprocess.run(
        [sys.executable, "-m", "rgpu.server", "init", "--keys", folder], capture_output=True, text=True, timeout=30
    )
    assert made.returncode == 0 and re.search(r"public key: \S{40}\n", made.stdout)
    again = subprocess.run(
        [sys.executable, "-m", "rgpu.server", "init", "--keys", folder], capture_output=True, timeout=30
    )
    assert again.returncode == 2  # nothing of it is replaced

    create = ["token", "create", "--user", "alice", "--keys", folder, "-o", str(output)]
    limits = ["--memory", "40GiB", "--compute", "0.5", "--devices", "2", "--expires", "30d", "--endpoint", "gpu1:47801"]
    done = rgpu(*create, *limits)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    token = tokens.read(output)
    assert token.user == "alice" and token.endpoints == (parse_address("gpu1:47801"),)
    assert token.secret_key not in repr(token) and token.secret_key not in done.stdout
    assert rgpu(*create).returncode == 1  # the file is there
    ring = keys.KeyRing(Path(folder))
    (person,) = ring.people()  # and no second key was left behind
    assert (person.memory, person.compute, person.devices) == (40 << 30, 0.5, 2)
    assert timedelta(29) < person.expires - datetime.now(UTC) <= timedelta(30)
    listed = rgpu("token", "list", "--keys", folder).stdout
    assert "alice" in listed and "40960 MiB" in listed and token.public_key not in listed
    assert token.secret_key not in "".join(path.read_text() for path in Path(folder).rglob("*") if path.is_file())
    assert rgpu("token", "revoke", "alice", "--keys", folder).returncode == 0
    ring.refresh()
    assert ring.who(token.public_key) is None
    assert rgpu("token", "revoke", "alice", "--keys", folder).returncode == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ["--expires", "yesterday"],
        ["--compute", "2"],
        ["--devices", "0"],
        ["--expires", "2001-01-01"],
        ["--memory", "much"],
    ],
)
def test_a_wrong_limit_is_said(tmp_path, wrong):
    keys.init(tmp_path / "k")
    done = rgpu("token", "create", "--user", "a", "-o", str(tmp_path / "t"), "--keys", str(tmp_path / "k"), *wrong)
    assert done.returncode == 2 and repr(wrong[1]) in done.stderr
    assert not (tmp_path / "t").exists()


# Where tokens are looked for


def test_a_token_that_others_can_read_is_refused(tmp_path, alice):
    path = tmp_path / "t.rgpu"
    path.write_text(Path(alice[1].path).read_text())
    path.chmod(0o640)
    with pytest.raises(errors.ConfigError, match="chmod 600"):
        tokens.read(path)


def test_which_token_is_for_which_server(tmp_path, alice):
    folder = tmp_path / "rgpu"
    folder.mkdir()
    for user, endpoints in (("a", ["gpu1"]), ("b", ["gpu2:1", "gpu3"])):
        tokens.save(alice[1].but(user=user, endpoints=tuple(map(parse_address, endpoints))), folder / f"{user}.rgpu")
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert tokens.find(parse_address("gpu3"), environ).user == "b"
    assert tokens.find(parse_address("gpu2"), environ) is None  # another port
    assert [str(a) for a in tokens.servers(environ)] == ["gpu1:47800", "gpu2:1", "gpu3:47800"]
    environ["RGPU_TOKEN"] = str(folder / "a.rgpu")
    assert tokens.find(parse_address("anywhere"), environ).user == "a"  # who names a token means it
    assert tokens.find(parse_address("127.0.0.1").but(own=True), environ) is None
    environ["RGPU_TOKEN"] = str(tmp_path / "missing")
    with pytest.raises(errors.ConfigError, match="RGPU_TOKEN"):
        tokens.find(parse_address("gpu1"), environ)


def test_a_list_of_clients_that_is_damaged_lets_nobody_in(tmp_path):
    keys.init(tmp_path)
    ring = keys.KeyRing(tmp_path)
    good, _ = ring.create("good", ())
    for number, text in enumerate(
        [
            "",
            "user = 1",
            'public_key = "x"\nuser = "x"',
            f'public_key = "{"a" * 40}"\nuser = "x"\nadmin = 1',
            "\0",
            "a = [[[",
        ]
    ):
        (tmp_path / "clients" / f"{number}.toml").write_text(text)
    ring.refresh()
    assert ring.people() == [good]


def test_no_descriptor_is_left_to_read_the_list(tmp_path, monkeypatch):
    """What cannot be read just now is what it was: or whoever takes all descriptors ends everybody's sessions."""
    keys.init(tmp_path)
    ring = keys.KeyRing(tmp_path)
    person, _ = ring.create("alice", ())

    def full(*_args, **_named):
        raise OSError(errno.EMFILE, "Too many open files")

    for place in ("read_text", "glob"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, place, full)
            ring.refresh()
            assert ring.server_keys.allows(person.public_key) and ring.who(person.public_key)
    ring.revoke(person)
    assert not ring.server_keys.allows(person.public_key)


def test_copies_between_devices_are_protected_as_well(guarded, alice, monkeypatch):
    import rgpu as cp

    monkeypatch.setenv("RGPU_TOKEN", alice[1].path)
    cp.connect(str(guarded.address))
    try:
        host = np.arange(300_000.0)
        a = cp.asarray(host)
        with cp.cuda.Device(1):
            b = cp.asarray(a) + 1
            np.testing.assert_array_equal(b.get(), host + 1)
        assert cp.stats()["direct_bytes"] >= host.nbytes
        kind = near() if not seal.missing() else "zmq"  # near: memory that only the two have
        assert cp.stats()["devices"][0]["links"] == {1: kind}
    finally:
        cp.close()


def test_two_ends_with_one_secret_meet_and_nobody_else():
    secret, other = os.urandom(16), os.urandom(16)
    (keys_a, token_a), (keys_b, token_b) = curve.meeting(secret), curve.meeting(secret)
    assert token_a == token_b and keys_a.pair == keys_b.pair and token_a.server_key == keys_a.pair.public
    assert keys_a.allows(token_b.public_key)
    assert not keys_a.allows(curve.meeting(other)[1].public_key) and not keys_a.allows(keys_a.pair.public)


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    protected = Protected(tmp_path_factory.mktemp("linked"), "--links", "tcp,shm,ucx")
    yield protected
    protected.server.stop()


@pytest.mark.parametrize("kind", ["tcp", "shm", "ucx"])
def test_every_link_with_keys(linked, kind):
    """What confines a worker leaves its links what they need: UCX makes shared memory under names."""
    if kind != "tcp" and (why := {"shm": shm, "ucx": ucx}[kind].missing()):
        pytest.skip(why)
    _, token = linked.token(f"user-of-{kind}")
    code = """
import rgpu as cp
from rgpu.client import pool
print(float(cp.arange(1 << 20, dtype="f8").sum()), pool.current_stream().connection.link.kind)
"""
    done = program(code, str(linked.address), RGPU_LINK=kind, RGPU_TOKEN=token.path)
    assert done.stdout.split() == [str(sum(range(1 << 20)) * 1.0), kind]
