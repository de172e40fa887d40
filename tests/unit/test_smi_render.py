"""rgpu-smi's pictures: their form, and what a strange server cannot do to a terminal."""

import pytest

from rgpu.errors import ServerUnavailable
from rgpu.smi import render, snapshot


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


SESSION = {"user": "ada", "host": "laptop", "pid": 4242, "program": "train.py", "memory_used": 5 << 20}


def server(*devices, **more):
    return {
        "address": "gpu1:47800",
        "name": "gpu1",
        "version": "0.1.0",
        "reachable": True,
        "error": None,
        "uptime": 3723.0,
        "devices": list(devices),
    } | more


DEAD = {
    "address": "gpu2:47800",
    "reachable": False,
    "error": "refused the connection; start it",
    "devices": [],
}


def test_the_table():
    text = render.table([server(device(0, 0, [SESSION]), device(1, 1)), DEAD], "0.1.0", 0.0)
    lines = text.splitlines()
    boxed = [line for line in lines if line.startswith(("|", "+"))]
    assert len({len(line) for line in boxed}) == 1
    assert all(line[-1] == line[0] for line in boxed)
    assert "RGPU-SMI 0.1.0" in text
    assert "Servers: 1/2  Devices: 2" in text
    row = next(line for line in lines if "gpu1:1" in line)
    assert " ".join(row.split()) == "| 1 NVIDIA H200 gpu1:1 | 1025MiB / 153600MiB| 37% cuda |"
    session = next(line for line in lines if "4242" in line)
    assert " ".join(session.split()) == "| 0 ada laptop 4242 train.py 5MiB |"
    assert any("gpu2:47800: refused the connection; start it" in line for line in lines)


@pytest.mark.parametrize("length", [1, 20, 200])
def test_long_names_do_not_break_the_table(length):
    long = dict.fromkeys(("user", "host", "program"), "x" * length) | {"pid": 2**32 - 1, "memory_used": 2**50}
    wide = device(
        123, 12345, [long], name="n" * length, kind="k" * length, memory_total=2**44, memory_used=2**44
    )
    text = render.table([server(wide, name="s" * length), DEAD | {"error": "e" * length}], "0.1.0")
    boxed = [line for line in text.splitlines() if line.startswith(("|", "+"))]
    assert len({len(line) for line in boxed}) == 1


def test_control_characters_never_reach_the_terminal():
    evil = "\x1b[2J\n"
    session = SESSION | {"user": evil, "host": evil, "program": evil}
    servers = [server(device(0, 0, [session], name=evil, kind=evil, uuid=evil), name=evil, version=evil)]
    servers.append(DEAD | {"error": evil})
    for text in (render.table(servers, "0"), render.listing(servers), render.server_listing(servers)):
        assert "\x1b" not in text
    assert len(render.server_listing(servers).splitlines()) == 2


def test_lists():
    servers = [server(device(0, 0, [SESSION])), DEAD]
    assert render.listing(servers).splitlines() == [
        "GPU 0: NVIDIA H200 (UUID: GPU-1) on gpu1:0 (gpu1:47800)",
        "Server gpu2:47800: refused the connection; start it",
    ]
    assert render.server_listing(servers).splitlines() == [
        "gpu1:47800: gpu1, rgpu 0.1.0, 1 device, 1 session, up 1:02:03",
        "gpu2:47800: refused the connection; start it",
    ]


def test_one_device_of_the_pool():
    servers = [server(device(0, 0)), server(device(0, 1), name="gpu3")]
    (only,) = render.only(servers, 1)
    assert only["name"] == "gpu3"
    assert render.only(servers, 2) is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        server(name=5),
        server({"index": 0}),
        server(device(0, 0, memory_used="much")),
        server(device(0, 0, [SESSION | {"pid": None}])),
    ],
)
def test_a_strange_answer_is_refused(answer):
    with pytest.raises(ServerUnavailable, match="does not understand"):
        snapshot._checked(answer)
