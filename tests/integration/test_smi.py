"""rgpu-smi as a command: output, exit codes, and what it does about servers that are not there."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rgpu.client.embedded import EmbeddedDaemon
from rgpu.config import parse_devices
from tests.support.daemons import Daemon, Talk
from tests.support.servers import free_port
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "rgpu.smi"]


@pytest.fixture(scope="module")
def pool():
    """Two servers with two and one devices, as if of two hosts; a session on device 1 of the pool."""
    elsewhere = os.environ | {"RGPU_HOST_ID": "elsewhere"}
    with (
        Daemon("--devices", "cpu:2", "--name", "one", "--prestart", "0", "--device-memory", "1G") as one,
        Daemon("--name", "two", "--prestart", "0", env=elsewhere) as two,
    ):
        talk = Talk(one.client.attach(1))
        over = threading.Event()

        def keep_alive():  # a client that says nothing for so long as these tests may take is taken for gone
            while not over.wait(0.2):
                talk.connection.pump()

        keeper = threading.Thread(target=keep_alive)
        keeper.start()
        yield one, two
        over.set()
        keeper.join()
        talk.bye()


@pytest.fixture(autouse=True)
def own_runtime_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "rgpu"


def smi(*arguments, servers=""):
    return subprocess.run(
        [*COMMAND, *arguments],
        env=os.environ | {"RGPU_SERVERS": servers},
        capture_output=True,
        text=True,
        timeout=60,
    )


def addresses(pool):
    return ",".join(str(server.address) for server in pool)


def test_the_table(pool):
    shown = smi(servers=addresses(pool))
    assert shown.returncode == 0
    assert "Servers: 2/2  Devices: 3" in shown.stdout
    rows = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    at = next(n for n, row in enumerate(rows) if row.startswith("| 1 "))
    assert "0MiB / 1024MiB | 0% cpu |" in rows[at + 1]
    assert rows[at + 2].startswith("| one:1 ") and "1 session" in rows[at + 2]
    assert any(row.startswith("| 2 ") and "two:0" in row for row in rows)
    assert any(str(os.getpid()) in row for row in rows)


def test_lists(pool):
    listed = smi("-L", servers=addresses(pool))
    assert [line.split(":")[0] for line in listed.stdout.splitlines()] == ["GPU 0", "GPU 1", "GPU 2"]
    assert "UUID: CPU-" in listed.stdout
    servers = smi("--servers", servers=addresses(pool)).stdout.splitlines()
    assert len(servers) == 2
    assert ": one, rgpu " in servers[0]
    assert "2 devices, 1 session, up 0:00:" in servers[0]


def test_json(pool):
    answer = json.loads(smi("--json", servers=addresses(pool)).stdout)
    one, two = answer["servers"]
    assert [d["pool_index"] for server in (one, two) for d in server["devices"]] == [0, 1, 2]
    assert (one["reachable"], one["name"], two["name"]) == (True, "one", "two")
    (session,) = one["devices"][1]["sessions"]
    assert session["pid"] == os.getpid()
    assert session["host"] == socket.gethostname()
    assert {"user", "memory_used"} <= session.keys()


def test_one_device(pool):
    (server,) = json.loads(smi("--json", "-i", "2", servers=addresses(pool)).stdout)["servers"]
    assert (server["name"], len(server["devices"])) == ("two", 1)
    missing = smi("-i", "3", servers=addresses(pool))
    assert missing.returncode == 6
    assert "no device 3 was found in the pool; it has 3" in missing.stderr
    uuid = smi("--query-gpu=uuid", "--format=csv,noheader", "-i", "1", servers=addresses(pool)).stdout.strip()
    chosen = smi("--query-gpu=index", "--format=csv,noheader", "-i", f"{uuid}, two:0", servers=addresses(pool))
    assert chosen.stdout.split() == ["1", "2"]


def test_a_server_that_is_not_there_is_a_row(pool):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        shown = smi(servers=f"{dead},nosuchhost.invalid,{pool[1].address}")
        took = time.monotonic() - began
    assert shown.returncode == 0
    assert took < 15  # 2 s, and the start of a Python on a busy machine
    text = " ".join(shown.stdout.replace("|", " ").split())
    assert "Servers: 1/3 Devices: 1" in text
    # On a busy machine the connection itself may be what nobody has heard of by then.
    assert any(
        f"{dead}: {words}" in text for words in ("accepted the connection but did not answer", "did not answer within")
    )
    assert "nosuchhost.invalid:47800: the name 'nosuchhost.invalid' cannot be resolved" in text
    assert "two:0" in text


def test_the_age_of_the_last_answer(own_runtime_directory):
    with Daemon("--name", "mortal", "--prestart", "0") as daemon:
        address = str(daemon.address)
        (server,) = json.loads(smi("--json", servers=address).stdout)["servers"]
        assert server["reachable"] and server["rtt"] > 0
    (note,) = own_runtime_directory.glob("last-answers.json")
    note.write_text(json.dumps({address: time.time() - 200}))
    shown = smi("-L", servers=address)
    assert shown.returncode == 9
    assert "last answer 3 min ago" in shown.stdout
    note.write_text("[nonsense")
    assert "refused the connection" in smi(servers=address).stdout


def test_no_server_at_all():
    port = free_port()
    shown = smi(servers=f"127.0.0.1:{port}")
    assert shown.returncode == 9
    assert "refused the connection" in shown.stdout
    answer = json.loads(smi("--json", servers=f"127.0.0.1:{port}").stdout)
    assert answer["servers"][0]["reachable"] is False
    assert answer["servers"][0]["devices"] == []


def test_something_else_at_that_address():
    """A web server closes the connection; at no point does that hang."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked = subprocess.Popen(
            COMMAND,
            env=os.environ | {"RGPU_SERVERS": f"127.0.0.1:{listener.getsockname()[1]}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        listener.settimeout(0.2)
        while asked.poll() is None:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
                try:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
                except OSError:
                    continue
        output = asked.communicate(timeout=10)[0]
    assert asked.returncode == 9
    assert "not an" in " ".join(output.replace("|", " ").split())


def test_without_servers_it_says_what_to_do(own_runtime_directory):
    own_runtime_directory.mkdir(mode=0o700)
    (own_runtime_directory / "embedded-1.json").write_text("{}")
    (own_runtime_directory / "embedded-2.json").write_text(
        '{"pid": 4194305, "endpoint": "tcp://127.0.0.1:1", "parent": 1}'
    )
    shown = smi()
    assert shown.returncode == 9
    assert "RGPU_SERVERS is not set" in shown.stderr
    assert not list(own_runtime_directory.iterdir())


def test_a_daemon_that_a_program_started_is_shown(own_runtime_directory):
    daemon = EmbeddedDaemon(parse_devices("cpu:2"))
    try:
        (path,) = own_runtime_directory.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        shown = smi()
        assert shown.returncode == 0
        assert "Servers: 1/1  Devices: 2" in shown.stdout
        assert "local:1" in shown.stdout
    finally:
        daemon.stop()
    assert not list(own_runtime_directory.glob("embedded-*"))


@pytest.mark.parametrize(
    ("arguments", "servers", "message"),
    [
        ((), "a:b:c", "RGPU_SERVERS: 'a:b:c' has no meaning: a server looks like"),
        (("-l", "0"), "", "a time looks like"),
        (("-l", "1", "-lms", "5"), "", "not allowed with"),
        (("--query-gpu=index,no.such",), "a:1", 'Field "no.such" is not a valid field to query.'),
        (("--query-gpu=index",), "a:1", "needs a format"),
        (("-q", "-d", "NONSENSE"), "a:1", "'NONSENSE' is none of MEMORY"),
        (("dmon", "-s", "pz"), "a:1", "choose of pucvmetr"),
        (("pmon", "-c", "0"), "a:1", "write 1, 2, ..."),
    ],
)
def test_bad_arguments(arguments, servers, message):
    shown = smi(*arguments, servers=servers)
    assert shown.returncode == 2
    assert message in (shown.stdout if "Field" in message else shown.stderr)  # nvidia-smi says it on the output


def test_the_loop_ends_with_ctrl_c(pool):
    with subprocess.Popen(
        [*COMMAND, "-l", "100ms"],
        env=os.environ | {"RGPU_SERVERS": addresses(pool)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as looping:
        pictures = 0
        while pictures < 3:
            pictures += "RGPU-SMI" in looping.stdout.readline()
        looping.send_signal(signal.SIGINT)
        _, errors = looping.communicate(timeout=10)
    assert looping.returncode == 0
    assert not errors


def test_csv_prints_its_header_once_in_a_loop(pool):
    with subprocess.Popen(
        [*COMMAND, "--query-gpu=index,memory.total", "--format=csv", "-lms", "50"],
        env=os.environ | {"RGPU_SERVERS": str(pool[1].address)},
        stdout=subprocess.PIPE,
        text=True,
    ) as looping:
        lines = [looping.stdout.readline().strip() for _ in range(4)]
        looping.send_signal(signal.SIGINT)
        looping.communicate(timeout=10)
    assert lines[0] == "index, memory.total [MiB]"
    assert all(line.startswith("0, ") and line.endswith(" MiB") for line in lines[1:])
    assert looping.returncode == 0


def test_sessions_as_csv_and_a_file(pool, tmp_path):
    out = tmp_path / "apps.csv"
    fields = "gpu_index,pid,used_memory,user,client_host,server"

    def written():  # again where a busy machine let a server answer too late to be a row
        done = smi(f"--query-compute-apps={fields}", "--format=csv", "-f", str(out), servers=addresses(pool))
        assert (done.returncode, done.stdout) == (0, "")
        lines = out.read_text().splitlines()
        return lines if len(lines) == 2 else None

    head, row = wait_until(written)
    assert head == "gpu_index, pid, used_gpu_memory [MiB], user, client_host, server"
    cells = row.split(", ")
    assert cells[:3] == ["1", str(os.getpid()), "0 MiB"] and cells[4:] == [socket.gethostname(), "one"]


@pytest.mark.parametrize("form", ["dmon", "pmon", "topo"])
def test_the_other_forms(pool, form):
    count = () if form == "topo" else ("-c", "1")
    shown = smi(form, *count, servers=addresses(pool))
    assert shown.returncode == 0
    assert len(shown.stdout.splitlines()) >= 4
    assert "-h" in smi(form, "-h").stdout


def test_what_a_device_did_in_the_last_two_minutes(pool):
    """Readings are a second apart: wait for the second one, then they span some time."""

    def samples():
        text = smi("-q", "-i", "0", "-d", "UTILIZATION,CLOCK", servers=addresses(pool)).stdout
        return re.findall(r"^    (\w+ \w+ Samples)(?:\n {8}\S.* : (.*)){2}$", text, re.MULTILINE)

    wait_until(lambda: int(dict(samples())["GPU Utilization Samples"]) >= 2, 30)
    found = dict(samples())
    assert found["Memory Utilization Samples"] == "N/A"
    assert int(found["SM Clock Samples"]) >= 2 or found["SM Clock Samples"] == "N/A"
    assert "Samples" not in smi("-q", "-i", "0", servers=addresses(pool)).stdout


def test_help_of_the_queries():
    told = smi("--help-query-gpu").stdout
    assert '"clocks.current.sm" or "clocks.sm"' in told and '"used_gpu_memory"' not in told
    assert '"used_gpu_memory" or "used_memory"' in smi("--help-query-compute-apps").stdout


def test_a_session_that_ends_leaves_the_table(pool):
    talk = Talk(pool[1].client.attach(0))
    talk.sync()
    assert len(pool[1].sessions()) == 1
    talk.bye()
    wait_until(lambda: not pool[1].sessions())


def test_topo_measures_the_links_between_workers_and_servers_remember(pool):
    text = smi("topo", "-b", servers=addresses(pool)).stdout
    cells = [line.split("\t") for line in text[text.index("Between workers") :].splitlines()[2:]]
    assert all(row[1 + n] == " X " for n, row in enumerate(cells)) and len(cells) == len(cells[0]) - 1
    figures = [cell for row in cells for cell in row[1:] if cell != " X "]
    assert text.splitlines()[1].split("\t")[1:4] == [" X ", "HOST", "NET"]
    assert all(re.fullmatch(r"(shm|tcp|ucx), \d+ us, \d+\.\d\d GB/s", cell) for cell in figures), text
    wait_until(lambda: set(pool[0].client.hello().devices[0]["reach"]) == {"elsewhere"})
    rtt, bandwidth = pool[0].client.hello().devices[0]["reach"]["elsewhere"]
    assert 1e-6 < rtt < 1 and bandwidth > 1e6


def test_smi_starts_without_what_it_does_not_need():
    """What would make it slow to start: a start is to take a tenth of a second."""
    heavy = """numpy rgpu.face rgpu.client rgpu.web rgpu.smi.report asyncio concurrent.futures logging textual xml email
        http.client tempfile importlib.metadata ssl shutil tomllib dataclasses inspect encodings.idna""".split()
    source = "import sys, rgpu.smi.main, rgpu.smi.render; rgpu.smi.main.build_parser();"
    source += f"print(sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
