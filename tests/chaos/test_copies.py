"""What is no array is copied too: objects of SciPy's classes and captured graphs, by drain and by redundancy."""

import os
import signal

import numpy as np
import pytest

from rgpu.client import pool
from rgpu.client.control import DaemonClient
from rgpu.config import parse_address
from tests.chaos.test_move import sessions
from tests.chaos.test_redundancy import mirror, process_of
from tests.support.servers import Server
from tests.support.waiting import wait_until


@pytest.fixture
def servers():
    with Server("cpu:1", "one") as one, Server("cpu:1", "two") as two:
        yield one, two


def things(cp, step=1):
    """Asks objects that have every way of being told (server/retelling), or each ``step``-th of them."""
    from rgpu.cupyx.scipy import interpolate, signal, spatial
    from rgpu.cupyx.scipy.sparse import csc_matrix, linalg

    rng = np.random.default_rng(0)
    x, points = cp.arange(8.0), cp.asarray(rng.random((20, 2)))
    y, heights, grid = cp.sin(x), cp.asarray(rng.random(20)), cp.outer(cp.sin(x), x)
    at, places = cp.linspace(0.2, 6.5, 11), cp.asarray(rng.random((9, 2)) * 0.6 + 0.2)
    matrix = csc_matrix(cp.asarray(rng.random((6, 6)) + 4 * np.eye(6)))
    cubic = interpolate.CubicSpline(x, y)
    curves = [cubic, cubic.derivative(), interpolate.BPoly(cp.ones((3, 7)), x), interpolate.PchipInterpolator(x, y)]
    curves += [interpolate.Akima1DInterpolator(x, y), interpolate.make_interp_spline(x, y)]
    curves += [interpolate.BarycentricInterpolator(x, cp.stack([y, 2 * y]), axis=1)]
    curves += [interpolate.KroghInterpolator(x, y)]
    curves += [interpolate.interp1d(x, y, kind=kind) for kind in ("linear", "cubic", "nearest")]
    curves += [interpolate.interp1d(x, y, fill_value="extrapolate"), interpolate.UnivariateSpline(x, y, s=0.1)]
    curves += [interpolate.InterpolatedUnivariateSpline(x, y), interpolate.LSQUnivariateSpline(x, y, cp.asarray([3.5]))]
    surfaces = [interpolate.RBFInterpolator(points, heights), interpolate.LinearNDInterpolator(points, heights)]
    surfaces += [interpolate.RBFInterpolator(points, heights, neighbors=5)]
    surfaces += [interpolate.NearestNDInterpolator(points, heights)]
    surfaces += [interpolate.CloughTocher2DInterpolator(points, heights)]
    surfaces += [interpolate.RegularGridInterpolator((x, x), grid, method=how) for how in ("linear", "cubic")]
    surfaces += [interpolate.NdPPoly(cp.ones((2, 2, 7, 7)), (x, x)), spatial.Delaunay(points).find_simplex]
    tree = spatial.KDTree(points)
    surfaces += [lambda q: tree.query(q, 3)[0]]
    transforms = [signal.CZT(8), signal.ZoomFFT(8, [0.1, 0.2])]
    solvers = [linalg.splu(matrix).solve, linalg.spilu(matrix).solve]
    symmetric = matrix + matrix.T
    solvers += [lambda _: linalg.eigsh(symmetric, k=2)[1], lambda _: linalg.svds(matrix, k=2)[0]]  # begin anywhere
    system = signal.dlti([1.0], [1.0, 2.0], dt=0.1)
    asked = [(f, at) for f in curves] + [(f, places) for f in surfaces] + [(f, x) for f in transforms]
    asked += [(f, cp.arange(6.0)) for f in solvers] + [(lambda _: system.den, None)]
    return lambda: [f(given).get().tobytes() for f, given in asked[::step]]


def captured(cp):
    """A graph that changes an array, makes others of a freed one, writes and has a kernel; what a launch leaves."""
    stream = cp.cuda.Stream(non_blocking=True)
    double = cp.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x", "twice")
    a, given = cp.arange(100.0), np.full(5, 7.0)
    with stream:
        stream.begin_capture()
        b = cp.sin(double(a + 1))[::3]
        a += 1
        a[10:15] = cp.asarray(given)
        graph = stream.end_capture()
    del double

    def launch():
        with stream:
            graph.launch()
            stream.synchronize()
        return a.get().tobytes(), b.get().tobytes()

    return launch, a


def expected_launches(cp, count):
    launch, _ = captured(cp)
    return [launch() for _ in range(count)]


def test_drain_moves_them(servers):
    import rgpu as cp
    from rgpu.cupyx.scipy import interpolate

    cp.connect(*[server.address for server in servers])
    old = DaemonClient(parse_address(servers[0].address))
    try:
        launches = expected_launches(cp, 3)
        ask, (launch, a) = things(cp), captured(cp)
        before, first = ask(), launch()
        view, far = a[::2], cp.arange(20.0)
        smoothed = interpolate.UnivariateSpline(far, cp.sin(far), s=0.5)
        smoothed.set_smoothing_factor(2.0)  # on a way of its own, which nobody else can go
        values = smoothed(far).get()
        used = cp.get_default_memory_pool().used_bytes()
        old.drain()
        stream = pool.get().device(0).stream
        wait_until(lambda: "UnivariateSpline" in getattr(stream.mirror, "note", ""), timeout=10)
        np.testing.assert_array_equal(smoothed(far).get(), values)
        assert len(sessions(old)) == 1  # it said why, and goes on where it is
        del smoothed
        wait_until(lambda: not sessions(old), timeout=30)
        assert ask() == before
        assert [first, launch(), launch()] == launches
        view += 1  # the graph's array is the program's, as before
        np.testing.assert_array_equal(a.get()[::2], np.frombuffer(launches[2][0])[::2] + 1)
        assert cp.get_default_memory_pool().used_bytes() == used  # what they consist of is in nobody's account
    finally:
        old.close()
        cp.close()


def test_redundancy_keeps_them(servers):
    import rgpu as cp

    with Server("cpu:1", "three") as three:
        cp.connect(*[server.address for server in (*servers, three)], redundancy=2)
        try:
            launches = expected_launches(cp, 3)
            ask, (launch, _) = things(cp, 4), captured(cp)
            before, seen = ask(), [launch()]
            victim = process_of(mirror().whole[0])
            os.kill(victim, signal.SIGKILL)
            cp.ones(3).sum().get()
            wait_until(lambda: len(mirror().whole) == 2 and victim not in map(process_of, mirror().whole), timeout=30)
            assert ask() == before  # both say so, or it would be a Divergence
            seen += [launch(), launch()]
            assert seen == launches
        finally:
            cp.close()
