"""Checkpoints: arrays and random states in a file and back, in this program and in another."""

import os
import struct
import warnings

import numpy as np
import pytest

from rgpu import errors
from rgpu.errors import CheckpointError
from rgpu.server.host import compilers
from tests.support.servers import Server, program


@pytest.fixture(scope="module")
def server():
    with Server("cpu:2", "saved") as running:
        yield running


@pytest.fixture
def cp(server):
    import rgpu

    rgpu.connect(server.address)
    yield rgpu
    rgpu.close()


def test_views_dtypes_and_layouts_come_back(cp, tmp_path):
    base = cp.arange(24, dtype="f4").reshape(4, 6)
    view, backwards = base[1:3, ::2], base[::-1, 5]
    fortran = cp.asfortranarray(cp.arange(12.0).reshape(3, 4))
    record = cp.asarray(np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]))
    empty, scalar, truth = cp.zeros((3, 0, 2)), cp.asarray(7j), cp.asarray([True, False])
    given = {"base": base, "view": view, "backwards": backwards, "fortran": fortran, "record": record}
    given |= {"empty": empty, "scalar": scalar, "truth": truth}
    expected = {name: array.get() for name, array in given.items()}
    cp.checkpoint(tmp_path / "file", **given)
    base.fill(-1)
    back = cp.restore(tmp_path / "file")
    assert set(back) == set(given)
    for name, array in back.items():
        assert (array.dtype, array.shape, array.strides) == (
            expected[name].dtype,
            expected[name].shape,
            given[name].strides,
        )
        np.testing.assert_array_equal(array.get(), expected[name])
    back["view"][...] = 100  # the same memory as base's, as before
    assert (back["base"].get()[1:3, ::2] == 100).all()
    back["base"][3, 5] = 5
    assert back["backwards"].get()[0] == 5


def test_random_states_go_on(cp, tmp_path):
    cp.random.seed(11)
    state, generator = cp.random.RandomState(3), cp.random.default_rng(4)
    for draw in (cp.random.rand, state.rand, generator.random):
        draw(5)
    cp.checkpoint(tmp_path / "file", state=state, generator=generator)
    expected = [draw(4).get() for draw in (cp.random.rand, state.rand, generator.random)]
    back = cp.restore(tmp_path / "file")
    again = [draw(4).get() for draw in (cp.random.rand, back["state"].rand, back["generator"].random)]
    np.testing.assert_array_equal(again, expected)


PROGRAM = """
import os, sys
import rgpu as cp
file, half = sys.argv[1:]
if half == "first":
    cp.random.seed(5)
    with cp.cuda.Device(1):
        other = cp.random.rand(10)
    w = cp.random.rand(100)
    steps = range(10)
else:
    state = cp.restore(file)
    w, other = state["w"], state["other"]
    steps = range(10, 20)
for step in steps:
    w = w * 0.9 + cp.random.rand(100)
if half == "first":
    cp.checkpoint(file, w=w, other=other)
    for step in range(10, 20):
        w = w * 0.9 + cp.random.rand(100)
print(w.get().tobytes().hex(), other.get().tobytes().hex(), other.device.id)
"""


def test_another_program_goes_on_where_one_was(server, tmp_path):
    path = str(tmp_path / "file")
    first = program(PROGRAM, server, arguments=(path, "first")).stdout
    assert program(PROGRAM, server, arguments=(path, "second")).stdout == first


def test_without_names_everything_is_saved(cp, tmp_path):
    a = cp.arange(5)
    b = a[2:]
    cp.checkpoint(tmp_path / "file")
    back = cp.restore(tmp_path / "file")
    np.testing.assert_array_equal(back[a._handle].get(), [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(back[b._handle].get(), [2, 3, 4])


def test_a_lost_worker_costs_what_came_after_the_checkpoint(cp, tmp_path):
    from rgpu.client import pool

    a = cp.arange(1 << 18) * 3
    cp.checkpoint(tmp_path / "file", a=a)
    session = pool.get().device(0).daemon.snapshot()["devices"][0]["sessions"]
    os.kill(next(s["worker_pid"] for s in session if s["pid"] == os.getpid()), 9)
    with pytest.raises(errors.WorkerLost):
        a.get()
    cp.reset()
    np.testing.assert_array_equal(cp.restore(tmp_path / "file")["a"].get(), np.arange(1 << 18) * 3)


def test_a_running_session_is_saved_from_outside(cp, server, tmp_path):
    from rgpu.client import pool

    cp.random.seed(4)
    a = cp.random.rand(300_000)
    view = a[::3]
    a.get()
    name = pool.get().device(0).seat.session.hex()[:8]
    arguments = ("rgpu.cli", "checkpoint", name, str(tmp_path / "file"))
    done = program("-m", server, launcher=(), arguments=arguments)
    assert "arrays and random states are in" in done.stderr
    expected, drawn = a.get(), cp.random.rand(4).get()
    a += 1  # the session goes on
    back = cp.restore(tmp_path / "file")
    np.testing.assert_array_equal(back[a._handle].get(), expected)
    np.testing.assert_array_equal(back[view._handle].get(), expected[::3])
    np.testing.assert_array_equal(cp.random.rand(4).get(), drawn)
    nothing = program("-m", server, launcher=(), arguments=("rgpu.cli", "checkpoint", "0" * 8, "x"), check=False)
    assert nothing.returncode and "no server of the pool has a session" in nothing.stderr


@pytest.mark.parametrize("command", ["free", "call", "view"])
def test_a_visitor_may_only_look(cp, server, command):
    from rgpu.client import pool, visit
    from rgpu.wire import ops

    a = cp.arange(5)
    a.get()
    seat = pool.get().device(0).seat
    visiting = seat.daemon.visit(seat.session.hex()[:8])
    bad = {
        "free": ops.Free.encode([a._handle]),
        "call": ops.Call.encode(0, [], [], {}),
        "view": ops.View.encode(1 << 40, a._handle, "|u1", [1], [1], 0),
    }[command]
    with pytest.raises(errors.SessionLost), visit.Visit(seat.daemon, visiting, "auto") as line:
        line._stream.lose_after(0.5)
        line.post([bad])
        line.ask("session.entries", 0)
    np.testing.assert_array_equal(a.get(), [0, 1, 2, 3, 4])


def _change(path, position, byte):
    data = bytearray(path.read_bytes())
    data[position] ^= byte
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["content", "header", "checksum", "cut", "longer", "foreign", "version", "empty"])
def test_a_damaged_or_foreign_file_is_refused(cp, tmp_path, what):
    path = tmp_path / "file"
    cp.checkpoint(path, a=cp.arange(100_000))
    size = path.stat().st_size
    if what == "cut":
        os.truncate(path, size - 1000)
    elif what == "longer":
        os.truncate(path, size + 1)
    elif what == "foreign":
        np.save(path.with_suffix(".npy"), np.arange(9))
        path = path.with_suffix(".npy")
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "version":
        data = bytearray(path.read_bytes())
        struct.pack_into("<H", data, 8, 99)
        path.write_bytes(data)
    else:
        _change(path, {"content": size // 2, "header": 80, "checksum": -1}[what], 4)
    with pytest.raises(errors.CheckpointError, match="damaged|no checkpoint|version 99"):
        cp.restore(path)
    assert int(cp.ones(3).sum()) == 3  # the session goes on


def test_what_cannot_be_saved_is_said(cp, tmp_path):
    with pytest.raises(TypeError, match="rng is a int"):
        cp.checkpoint(tmp_path / "file", rng=3)
    with pytest.raises(FileNotFoundError):
        cp.restore(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        cp.checkpoint(tmp_path / "no" / "folder", a=cp.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_objects_that_are_not_kept_are_named(cp, server, tmp_path):
    from rgpu.cupyx.scipy.spatial import KDTree

    stream = cp.cuda.Stream(non_blocking=True)
    tree, a = KDTree(cp.random.rand(30, 3)), cp.arange(10.0)
    with stream:
        stream.begin_capture()
        a * 2
        graph = stream.end_capture()
    for name, thing, kind in (("tree", tree, "KDTree"), ("graph", graph, "Graph")):
        with pytest.raises(TypeError, match=f"{name} is a {kind}.* make it again"):
            cp.checkpoint(tmp_path / "file", **{name: thing})
    assert not (tmp_path / "file").exists()
    with pytest.warns(UserWarning, match="no CpuGraph, .*KDTree"):
        cp.checkpoint(tmp_path / "file")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cp.checkpoint(tmp_path / "named", a=a)
    from rgpu.client import pool

    session = pool.get().device(0).seat.session.hex()[:8]
    arguments = ("rgpu.cli", "checkpoint", session, str(tmp_path / "outside"))
    done = program("-m", server, launcher=(), arguments=arguments)
    assert "not in it" in done.stderr and "KDTree" in done.stderr and "Graph" in done.stderr


def test_an_array_over_a_modules_global(cp, tmp_path):
    """It does not own its memory, nor does any array. It comes back, and with it all others."""
    if not compilers():
        pytest.skip("no compiler")
    module = cp.RawModule(code='extern "C" { __device__ float known[4]; __constant__ float fixed[4]; }')
    known, fixed = (cp.ndarray(4, "f4", module.get_global(name)) for name in ("known", "fixed"))
    known[...], fixed[...], other = cp.arange(4), 7, cp.arange(3.0)
    for named in ({"known": known[1:], "other": other}, {}):
        cp.checkpoint(tmp_path / "file", **named)
        found = cp.restore(tmp_path / "file")
        if named:
            np.testing.assert_array_equal(found["known"].get(), [1, 2, 3])
            np.testing.assert_array_equal(found["other"].get(), [0, 1, 2])
            found["known"][...] = 5
        else:
            saved = [array.get().tolist() for array in found.values() if array.size < 5]
            assert all(array in saved for array in ([0, 1, 2], [0, 1, 2, 3], [7, 7, 7, 7]))
    np.testing.assert_array_equal(known.get(), [0, 1, 2, 3])


def test_an_array_that_has_failed_is_refused_when_it_is_saved(cp, tmp_path):
    bad = cp.random.RandomState(1).choice(3, 2, True, cp.asarray([2.0, 2.0, 2.0]))
    with pytest.raises(ValueError, match="do not sum to 1"):
        bad.get()
    with pytest.raises(CheckpointError, match="bad cannot be saved: what makes it has failed"):
        cp.checkpoint(tmp_path / "file", bad=bad, good=cp.ones(3))
    assert not list(tmp_path.iterdir())
    cp.checkpoint(tmp_path / "file", good=cp.ones(3))
    np.testing.assert_array_equal(cp.restore(tmp_path / "file")["good"].get(), 1)
