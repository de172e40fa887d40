"""``cupyx.jit``: kernels written in Python, as CuPy's documentation describes them."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def jit(cp):
    from rgpu.cupyx import jit

    return jit


def run(cp, kernel, *args, block=32, grid=1):
    before = cp.stats()["round_trips"]
    kernel[grid, block](*args)
    assert cp.stats()["round_trips"] == before  # a launch waits for nothing


def test_both_ways_to_launch_on_any_layout(cp, jit):
    @jit.rawkernel()
    def copy(x, y):
        for i in range(jit.grid(1), x.shape[0], jit.gridsize(1)):
            for j in range(len(x) - len(x), x.shape[1]):
                y[i, j] = x[i, j] * 2 + x.ndim

    x = cp.arange(60, dtype="f4").reshape(10, 6)
    for view in (x, x.T, x[::-1, ::2], x[:0]):
        y, z = cp.zeros(view.shape, "f4"), cp.zeros(view.shape, "f4")
        copy((2,), (4,), (view, y))
        run(cp, copy, view, z, block=4, grid=2)
        np.testing.assert_array_equal(y.get(), view.get() * 2 + 2)
        np.testing.assert_array_equal(z.get(), y.get())


def test_a_reduction_with_shared_memory_barriers_and_atomics(cp, jit):
    @jit.rawkernel()
    def total(x, y, size):
        """Sums."""
        thread = jit.threadIdx.x
        value = cp.float64(0)
        for i in range(jit.blockIdx.x * jit.blockDim.x + thread, size, jit.blockDim.x * jit.gridDim.x):
            value += x[i]
        memory = jit.shared_memory(cp.float64, 64)
        memory[thread] = value
        jit.syncthreads()
        half = jit.blockDim.x // 2
        while half > 0:
            if thread < half:
                memory[thread] += memory[thread + half]
            jit.syncthreads()
            half //= 2
        if thread == 0:
            jit.atomic_add(y, 0, memory[0])

    x, y = cp.arange(1000, dtype="f8"), cp.zeros(1)
    run(cp, total, x, y, np.uint32(1000), block=64, grid=3)
    assert y.get()[0] == 499500


def test_device_functions_constants_and_swaps(cp, jit):
    scale = 3

    @jit.rawkernel(device=True)
    def weight(x, i):
        if x[i] % 2 == 0:
            return x[i] * scale
        return -x[i]

    @jit.rawkernel()
    def kernel(x, y):
        i = jit.grid(1)
        a, b = x[i], weight(x, i)
        a, b = b, a
        if 0 <= i < x.size and not (i == 5 or i == 7):
            y[i] = a - b if a > b else max(a, b, 1)

    x, y = cp.arange(32), cp.zeros(32, "i8")
    run(cp, kernel, x, y)
    n = np.arange(32)
    w = np.where(n % 2, -n, 3 * n)
    expected = np.where(w > n, w - n, np.maximum(np.maximum(w, n), 1))
    expected[[5, 7]] = 0
    np.testing.assert_array_equal(y.get(), expected)
    with pytest.raises(TypeError, match="device function"):
        weight[1, 1](x, 0)


def test_division_remainder_and_power_are_pythons(cp, jit):
    @jit.rawkernel(mode="numpy")
    def kernel(a, b, quotient, rest, power, ratio):
        i = jit.threadIdx.x
        quotient[i] = a[i] // b[i]
        rest[i] = a[i] % b[i]
        power[i] = a[i] ** 3
        ratio[i] = a[i] / b[i]

    for dtype in "if":
        a, b = np.array([7, -7, 7, -7, 0], dtype), np.array([3, 3, -3, -3, 5], dtype)
        out = [cp.zeros(5, dtype) for _ in range(3)] + [cp.zeros(5)]
        run(cp, kernel, cp.asarray(a), cp.asarray(b), *out, block=5)
        for found, expected in zip(out, (a // b, a % b, a**3, a / b)):
            np.testing.assert_allclose(found.get(), expected, rtol=1e-6)


@pytest.mark.parametrize(("mode", "dtype"), [("cuda", "f4"), ("numpy", "f8")])
def test_each_mode_promotes_by_its_own_rule(cp, jit, mode, dtype):
    @jit.rawkernel(mode=mode)
    def kernel(x, n, y):
        value = x[0] * n
        y[0] = value

    x, y = cp.full(1, 0.1, "f4"), cp.zeros(1, "f8")
    run(cp, kernel, x, np.int32(16777217), y, block=1)
    assert y.get()[0] == np.float32(0.1).astype(dtype) * np.int32(16777217).astype(dtype)
    kind = "float" if dtype == "f4" else "double"
    assert f"{kind} v_value;" in kernel.cached_code


def test_ufuncs_casts_and_python_mathematics(cp, jit):
    @jit.rawkernel()
    def kernel(x, y):
        i = jit.threadIdx.x
        y[i, 0] = cp.sin(x[i]) + np.exp(-x[i])
        y[i, 1] = math.sqrt(x[i]) + math.pi
        y[i, 2] = float(int(x[i])) + abs(x[i] - 2) + min(x[i], cp.float32(1))
        y[i, 3] = cp.maximum(x[i], 2.5)

    x = np.linspace(0, 4, 8, dtype="f4")
    y = cp.zeros((8, 4), "f4")
    run(cp, kernel, cp.asarray(x), y, block=8)
    expected = [
        np.sin(x) + np.exp(-x),
        np.sqrt(x) + np.pi,
        x.astype(int) + abs(x - 2) + np.minimum(x, 1),
        np.maximum(x, 2.5),
    ]
    np.testing.assert_allclose(y.get(), np.stack(expected, 1), rtol=1e-5)


def test_atomics_and_shuffles(cp, jit):
    @jit.rawkernel()
    def kernel(x, y):
        i = jit.threadIdx.x
        jit.atomic_add(y, 0, x[i])
        jit.atomic_max(y, 1, x[i])
        jit.atomic_min(y, (2,), x[i])
        jit.atomic_cas(y, 3, 0, 9)
        y[4 + i] = jit.shfl_down_sync(0xFFFFFFFF, x[i], 1)
        if jit.laneid() == jit.warpsize - 1:
            y[4 + i] = -1

    for dtype in ("i4", "i8"):
        x, y = cp.arange(32, dtype=dtype), cp.zeros(36, dtype)
        run(cp, kernel, x, y)
        np.testing.assert_array_equal(y.get(), [496, 31, 0, 9, *range(1, 32), -1])


def test_ranges_that_count_down(cp, jit):
    @jit.rawkernel()
    def kernel(y, n):
        count = 0
        for i in jit.range(n - 1, -1, -2):
            if i == 3:
                continue
            y[count] = i
            count += 1
            if count == 4:
                break

    y = cp.zeros(6, "i4")
    run(cp, kernel, y, 10, block=1)
    np.testing.assert_array_equal(y.get(), [9, 7, 5, 1, 0, 0])


def test_what_cannot_be_a_kernel_is_refused_by_line(cp, jit):
    @jit.rawkernel()
    def changes(x):
        a = x[0]
        a = jit.threadIdx.x
        x[0] = a

    @jit.rawkernel()
    def strange(x):
        with x:
            pass

    @jit.rawkernel()
    def narrowing(x):
        x[0] = 1.5

    x = cp.zeros(3, "i8")
    with pytest.raises(TypeError, match="line 4: Data type mismatch of variable: `a`"):
        changes[1, 1](x)
    with pytest.raises(NotImplementedError, match="With"):
        strange[1, 1](x)
    with pytest.raises(TypeError, match="cast"):
        narrowing[1, 1](x)
    with pytest.raises(TypeError, match="positional"):
        narrowing[1, 1](x, x)
    with pytest.raises(TypeError, match="not supported"):
        narrowing[1, 1]([1])
    with pytest.raises(RuntimeError, match="outside"):
        jit.syncthreads()


def test_thrust_runs_inside_kernels_on_rows_and_shared_memory(cp, jit):
    @jit.rawkernel()
    def work(x, keys, found, ends):
        i = jit.threadIdx.x
        row = x[i]
        jit.thrust.sort_by_key(jit.thrust.device, row.begin(), row.end(), keys[i].begin())
        ends[i, 0], ends[i, 1] = 0, 0
        first, last = jit.thrust.equal_range(jit.thrust.seq, row.begin(), row.end(), 3)
        ends[i, 0] = first - row.begin()
        ends[i, 1] = last - row.begin()
        shared = jit.shared_memory(np.int64, 8)
        shared[i] = row[0]
        jit.syncthreads()
        found[i] = jit.thrust.reduce(jit.thrust.seq, shared, shared + 4, 100)

    x = np.random.default_rng(1).integers(0, 6, (4, 9))
    keys = np.tile(np.arange(9), (4, 1))
    for order in "CF":
        on_device, on_keys = cp.asarray(x, order=order), cp.asarray(keys)
        found, ends = cp.zeros(4, "i8"), cp.zeros((4, 2), "i8")
        run(cp, work, on_device, on_keys, found, ends, block=4)
        np.testing.assert_array_equal(on_device.get(), np.sort(x))
        np.testing.assert_array_equal(on_keys.get(), np.argsort(x, kind="stable"))
        np.testing.assert_array_equal(found.get(), 100 + x.min(axis=1).sum())
        expected = [[np.searchsorted(np.sort(r), 3, side) for side in ("left", "right")] for r in x]
        np.testing.assert_array_equal(ends.get(), expected)


def test_a_grid_meets_and_warps_reduce(cp, jit):
    @jit.rawkernel()
    def meet(x, y):
        g = jit.cg.this_grid()
        x[g.thread_rank()] = g.thread_rank() + 1
        g.sync()  # without it, other blocks' elements are still 0
        y[g.thread_rank()] = x[g.size() - 1 - g.thread_rank()]

    x, y = cp.zeros(8 * 16, "i8"), cp.zeros(8 * 16, "i8")
    run(cp, meet, x, y, grid=8, block=16)
    np.testing.assert_array_equal(y.get(), np.arange(128)[::-1] + 1)

    @jit.rawkernel()
    def most(x, y):
        Reduce = jit.cub.BlockReduce[np.float32, 64]  # noqa: N806 - a type
        storage = jit.shared_memory(Reduce.TempStorage, 1)
        largest = Reduce(storage[0]).Reduce(x[jit.grid(1)], jit.cub.Max())
        if jit.threadIdx.x == 0:
            y[jit.blockIdx.x] = largest

    x = np.random.default_rng(0).random((3, 64), "f4")
    y = cp.zeros(3, "f4")
    run(cp, most, cp.asarray(x).ravel(), y, grid=3, block=64)
    np.testing.assert_array_equal(y.get(), x.max(axis=1))


def test_a_kernel_evaluates_an_index_once_and_calls_no_function_in_itself(cp, jit):
    @jit.rawkernel(device=True)
    def bump(x):
        x[0] += 1
        return 1

    @jit.rawkernel()
    def once(x):
        x[bump(x)] += 1

    x = cp.zeros(2, "i8")
    once[1, 1](x)
    assert x.tolist() == [1, 1]

    @jit.rawkernel(device=True)
    def endless(x):
        return endless(x)

    @jit.rawkernel()
    def start(x):
        x[0] = endless(x)

    with pytest.raises(ValueError, match="Recursive"):
        start[1, 1](x)
