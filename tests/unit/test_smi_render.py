"""rgpu-smi's pictures: their form, and what a strange server cannot do to a terminal."""

import pytest

from rgpu.errors import ServerUnavailable
from rgpu.smi import monitor, query, render, report, snapshot


def device(index, pool_index, sessions=(), **more):
    return {
        "index": index,
        "pool_index": pool_index,
        "name": "NVIDIA H200",
        "kind": "cuda",
        "memory_total": 150 << 30,
        "memory_used": (1 << 30) + 1,
        "utilization": 37,
        "uuid": "GPU-1",
        "sessions": list(sessions),
    } | more


SESSION = {"user": "ada", "host": "laptop", "pid": 4242, "program": "train.py", "memory_used": 5 << 20, "id": "0a1b"}


def server(*devices, **more):
    return {
        "address": "gpu1:47800",
        "name": "gpu1",
        "host": "gpu1",
        "version": "0.1.0",
        "reachable": True,
        "error": None,
        "rtt": 0.00012,
        "uptime": 3723.0,
        "devices": list(devices),
    } | more


DEAD = {
    "address": "gpu2:47800",
    "reachable": False,
    "error": "refused the connection; start it",
    "devices": [],
}
FORMS = {
    "table": lambda servers: render.table(servers, "0.1.0"),
    "list": render.listing,
    "short": render.short,
    "servers": render.server_listing,
    "report": lambda servers: report.text(servers, []),
    "xml": report.xml,
    "dmon": lambda servers: monitor.dmon(servers, "pucvmetr", "DT", True),
    "pmon": lambda servers: monitor.pmon(servers, "um", "DT", True),
    "topo": monitor.topo,
    "gpu": lambda servers: query.Query("gpu", "name,uuid,server,users,pci.bus_id", "csv").text(servers),
    "apps": lambda servers: query.Query("compute-apps", "name,user,host", "csv").text(servers),
}


def boxed(text):
    return [line for line in text.splitlines() if line.startswith(("|", "+"))]


def words(line):
    return " ".join(line.split())


def test_the_table():
    text = render.table([server(device(0, 0, [SESSION]), device(1, 1)), DEAD], "0.1.0", 0.0)
    lines = text.splitlines()
    assert {len(line) for line in boxed(text)} == {91}
    assert all(line[-1] == line[0] for line in boxed(text))
    assert "RGPU-SMI 0.1.0" in text
    assert "Servers: 1/2  Devices: 2" in text
    at = next(n for n, line in enumerate(lines) if line.startswith("|   1  "))
    assert words(lines[at]) == "| 1 NVIDIA H200 N/A | gpu1:1 N/A | N/A |"
    assert words(lines[at + 1]) == "| N/A N/A N/A N/A / N/A | 1025MiB / 153600MiB | 37% cuda |"
    assert words(lines[at + 2]) == "| gpu1:1 - 0.12ms | free | N/A |"
    at = next(n for n, line in enumerate(lines) if "4242" in line)
    assert words(lines[at]) == "| 0 N/A N/A 4242 C train.py 5MiB |"
    assert words(lines[at + 1]) == "| ada@laptop session 0a1b |"
    assert any("gpu2:47800: refused the connection; start it" in line for line in lines)


def test_leases_and_the_queue():
    leased = SESSION | {"memory_limit": 8 << 30, "compute": 0.25, "memory_spilled": 1 << 30, "link": "shm", "age": 61}
    waiting = {"position": 1, "user": "bob", "host": "desk", "pid": 7, "count": 2, "memory": 1 << 30, "waited": 75.0}
    held = {"user": "eve", "host": "sea", "pid": 9, "memory": 2 << 30, "compute": 0.5, "sessions": 0}
    held["seconds_left"] = 3600.0
    busy = held | {"user": "ada", "sessions": 1, "seconds_left": None}
    shared = device(0, 0, [leased], memory_leased=8 << 30, leases=[held, busy])
    text = render.table([snapshot._checked(server(shared, queue=[waiting]))], "0.1.0")
    assert {len(line) for line in boxed(text)} == {91}
    rows = [words(line) for line in text.splitlines()]
    assert "| ada@laptop of 8192MiB 25% 1024MiB spilled shm 0:01:01 session 0a1b |" in rows
    assert any("1 session, 8192MiB |" in row for row in rows)
    assert "| 0 eve sea 9 2048MiB 50% no session 1:00:00 |" in rows
    assert not any("ada" in row and "2048MiB" in row for row in rows)
    assert "| 1 bob desk 7 2 devices, 1024MiB gpu1 0:01:15 |" in rows


@pytest.mark.parametrize("length", [1, 20, 200])
def test_long_names_do_not_break_the_table(length):
    long = dict.fromkeys(("user", "host", "program", "id", "link"), "x" * length)
    long |= {"pid": 2**32 - 1, "memory_used": 2**50, "memory_limit": 2**50, "compute": 1.0, "utilization": 100}
    wide = device(
        123, 12345, [long], name="n" * length, kind="k" * length, memory_total=2**44, memory_used=2**44,
        compute_mode="c" * length, mig_mode="m" * length, pci_bus_id="p" * length,
    )  # fmt: skip
    queue = [long | {"position": 10**6, "count": 10**6, "memory": 2**50, "waited": 1e9}]
    servers = [server(wide, name="s" * length, link="l" * length, queue=queue), DEAD | {"error": "e" * length}]
    assert {len(line) for line in boxed(render.table(servers, "0.1.0"))} == {91}


@pytest.mark.parametrize("form", FORMS)
def test_control_characters_never_reach_the_terminal(form):
    evil = "\x1b[2J\n\x07"
    session = SESSION | {"user": evil, "host": evil, "program": evil, "id": evil, "link": evil}
    facts = dict.fromkeys(("name", "kind", "uuid", "pci_bus_id", "driver", "cuda", "compute_mode", "mig_mode"), evil)
    servers = [
        server(device(0, 0, [session], **facts), name=evil, version=evil, link=evil, page=evil, queue=[session]),
        DEAD | {"error": evil},
    ]
    text = FORMS[form](snapshot.printable(servers))
    assert "\x1b" not in text and "\x07" not in text
    plain = FORMS[form]([server(device(0, 0, [SESSION], **dict.fromkeys(facts, "x")), queue=[SESSION]), DEAD])
    assert len(text.splitlines()) == len(plain.splitlines())


def test_lists():
    servers = [server(device(0, 0, [SESSION])), DEAD | {"last_answer": 1.0}]
    first, second = render.listing(servers).splitlines()
    assert first == "GPU 0: NVIDIA H200 (UUID: GPU-1) on gpu1:0 (gpu1:47800)"
    assert second.startswith("Server gpu2:47800: refused the connection; start it; last answer ")
    assert render.server_listing([servers[0], DEAD]).splitlines() == [
        "gpu1:47800: gpu1, rgpu 0.1.0, 1 device, 1 session, up 1:02:03, rtt 0.12ms",
        "gpu2:47800: refused the connection; start it",
    ]


def test_one_line_a_device():
    plain = render.short([server(device(0, 0, [SESSION], temperature=48)), DEAD])
    assert plain.splitlines() == [
        "[0] gpu1:0  NVIDIA H200 |  48°C,  37 % |   1025 / 153600 MB | ada:train.py/4242(5M)",
        "[-] gpu2:47800: refused the connection; start it",
    ]
    assert "\033[36m[0]\033[0m" in render.short([server(device(0, 0))], color=True)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        server(name=5),
        server({"index": 0}),
        server(device(0, 0, memory_used="much")),
        server(device(0, 0, [SESSION | {"pid": None}])),
        server(queue=[7]),
        server(device(0, 0, leases=[{"user": "ada"}])),
    ],
)
def test_a_strange_answer_is_refused(answer):
    with pytest.raises(ServerUnavailable, match="does not understand"):
        snapshot._checked(answer)


@pytest.mark.parametrize("form", FORMS)
def test_strange_extras_are_left_out(form):
    """What is not needed must not break a picture, whatever type a newer or broken server sends."""
    names = set(snapshot._OPTIONAL) - {"utilization", "user", "host", "program", "pid", "leases"}
    for strange in ({"x": []}, "text", [1], -1.5, True):
        extras = dict.fromkeys(names, strange)
        lease = SESSION | extras | {"sessions": 0}
        shared = device(0, 0, [SESSION | extras], **extras, leases=[lease])
        strange_server = server(shared, **(extras | {"queue": [SESSION | extras]}))
        assert FORMS[form]([snapshot._checked(strange_server)])
