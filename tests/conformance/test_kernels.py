"""Custom kernels as CuPy documents them: results, predicted without waiting, and errors."""

import pickle

import numpy as np
import pytest

from rgpu import _native

SQUARE = "z = (x - y) * (x - y)"


def rounds(cp):
    return cp.stats()["round_trips"]


# ---- element-wise ---------------------------------------------------------------------------------


def test_elementwise_broadcasts_and_nobody_waits(cp):
    kernel = cp.ElementwiseKernel("T x, T y", "T z", SQUARE, "square")
    a, b = cp.arange(10, dtype="f4").reshape(2, 5), cp.arange(5, dtype="f4")
    before = rounds(cp)
    z = kernel(a, b)
    again = kernel(z, 2, z)
    assert (z.shape, z.dtype) == ((2, 5), np.float32)
    assert again is z
    assert rounds(cp) == before
    first = (np.arange(10, dtype="f4").reshape(2, 5) - np.arange(5, dtype="f4")) ** 2
    np.testing.assert_array_equal(z.get(), (first - 2) ** 2)


@pytest.mark.parametrize("dtype", "?bBhHiIlLqQefdFD")
def test_types(cp, dtype):
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = x + y")
    x = np.arange(6).astype(dtype).reshape(2, 3)
    np.testing.assert_array_equal(kernel(cp.asarray(x), x.dtype.type(1)).get(), x + x.dtype.type(1))


@pytest.mark.skipif(_native.IMPLEMENTATION is _native.PURE, reason="needs the C core")
@pytest.mark.parametrize("dtype", "bBhHiIlL")
def test_a_division_by_zero_goes_on(cp, dtype):
    kernel = cp.ElementwiseKernel("T x, T y", "T q, T r", "q = x / y; r = x % y", "divide")
    info = np.iinfo(dtype)
    x = np.array([7, 9, info.max, info.min] * 3, dtype)
    y = np.array([2, 3, 5, info.max] + [0, 0, 0, 4] + [-1 % 2**info.bits if info.min == 0 else -1] * 4, dtype)
    q, r = (part.get() for part in kernel(cp.asarray(x), cp.asarray(y)))
    good = np.array([True] * 4 + [False] * 3 + [True] * 4 + [info.min == 0])
    np.testing.assert_array_equal(q[good], np.trunc(x[good] / y[good].astype("f16")).astype(dtype))
    np.testing.assert_array_equal(r[good], np.fmod(x[good], y[good]))


def test_any_layout(cp):
    kernel = cp.ElementwiseKernel("T x, T y", "T z", "z = 10 * x + y + 100 * i")
    x = np.arange(24, dtype="i8").reshape(2, 3, 4)
    for view in (
        lambda a: a.T,
        lambda a: a[:, ::-1, ::2],
        lambda a: a[0, :, None],
        lambda a: a[1, 2, 3],
        lambda a: a[:, :0],
    ):
        expected = 10 * view(x) + 1 + 100 * np.arange(view(x).size).reshape(view(x).shape)
        np.testing.assert_array_equal(kernel(view(cp.asarray(x)), 1).get(), expected)


def test_a_launch_like_an_earlier_one_takes_its_own_arguments(cp):
    kernel = cp.ElementwiseKernel("T x, T y, raw T w, T s", "T z", "z = x + 10 * y + 100 * w[0] + s")
    x, y, w = cp.ones(3), cp.full(3, 2.0), cp.full(3, 3.0)
    assert kernel(x, x, x, 1).get().tolist() == [112] * 3
    assert kernel(x, y, w, 5).get().tolist() == [326] * 3
    assert kernel(y, x, y, 0.5).get().tolist() == [212.5] * 3


def test_walked_arrays_are_there_whole_too(cp):
    """CuPy's own name for the array behind an element, which libraries' kernels ask for its shape."""
    kernel = cp.ElementwiseKernel(
        "raw T x, T y", "T z",
        "z = y + x[_raw_z.shape()[1] - 1] + 100 * _raw_y[0] + 1000 * _raw_z.strides()[0]",
        reduce_dims=False,
    )  # fmt: skip
    z = kernel(cp.arange(5), cp.arange(6).reshape(2, 3)[:, ::-1])
    np.testing.assert_array_equal(z.get(), np.arange(6).reshape(2, 3)[:, ::-1] + 2 + 200 + 24000)


@pytest.mark.parametrize("held", [False, True])
def test_an_array_of_pointers(cp, servers, held):
    """Addresses that a program writes into an array lead to its arrays' memory, and are what it reads back. What it
    still holds (``held``) of an earlier session has no memory any more and is nobody's business."""
    earlier = cp.zeros(5)
    if held:
        assert earlier.data.ptr
        cp.close()
        cp.connect(*[server.address for server in servers], check_prediction=True)
    code = """
    template<class T> __global__ void gather(T* out, T const **parts, int const* lengths, int n) {
        for (int j = threadIdx.x; j < n; j += blockDim.x)
            for (int i = 0; i < lengths[j]; ++i) out[4 * j + i] = parts[j][i];
    }"""
    module = cp.RawModule(code=code, options=("--std=c++11",), name_expressions=("gather<float>",))
    a, b, out = cp.arange(3, dtype="f4"), cp.arange(8, dtype="f4")[4:], cp.zeros((2, 4), "f4")
    places = [a.data.ptr, b.data.ptr]
    parts = cp.array(places)
    module.get_function("gather<float>")((1,), (32,), (out, parts, cp.array([3, 4], "i4"), np.int32(2)))
    assert out.tolist() == [[0, 1, 2, 0], [4, 5, 6, 7]]
    assert parts.tolist() == places


def test_a_preamble_adds_to_namespaces_of_libraries(cp):
    preamble = """
    #include <type_traits>
    struct Mine { int x; };
    template<> struct std::is_integral<Mine> : std::true_type { static const int more = 4; };
    namespace std { template<> struct is_floating_point<Mine> { static const int value = 2; }; }
    template<class T> __device__ T plus(T x) { return x + std::is_floating_point<Mine>::value; }
    """
    kernel = cp.ElementwiseKernel(
        "T x", "T y", "y = plus(x) * std::is_integral<Mine>::more * std::is_integral<T>::value", preamble=preamble
    )
    assert kernel(cp.arange(3)).tolist() == [8, 12, 16]


def test_raw_parameters_size_and_indexer(cp):
    kernel = cp.ElementwiseKernel("raw T x, int32 m", "T z", "z = x[m - 1 - i] + n + _ind.size() + x.shape()[0]")
    np.testing.assert_array_equal(kernel(cp.arange(6), 6, size=6).get(), np.arange(6)[::-1] + 18)
    two = cp.ElementwiseKernel("raw T x", "T z", "int p[2] = {int(i), 1}; z = x[p]")
    np.testing.assert_array_equal(two(cp.arange(12).reshape(2, 6).T, size=6).get(), np.arange(6) + 6)
    shaped = cp.ElementwiseKernel("T x", "T z", "z = _ind.get()[0] * 100 + _ind.get()[1]", reduce_dims=False)
    np.testing.assert_array_equal(shaped(cp.zeros((2, 3))).get(), np.add.outer(np.arange(2) * 100, np.arange(3)))


def test_several_outputs_preamble_and_control_flow(cp):
    kernel = cp.ElementwiseKernel(
        "T x", "T low, float64 high", "if (x > 2) { low = twice(x); high = x; return; } low = 0; high = -1",
        preamble="__device__ T twice(T x) { return 2 * x; }",
    )  # fmt: skip
    low, high = kernel(cp.arange(5))
    assert low.get().tolist() == [0, 0, 0, 6, 8]
    assert high.get().tolist() == [-1, -1, -1, 3, 4]
    assert isinstance(cp.ElementwiseKernel("T x", "T z", "z = x", return_tuple=True)(cp.ones(2)), tuple)
    assert cp.ElementwiseKernel("T x", "T z", "z = x", no_return=True)(cp.ones(2)) is None


def test_atomics_over_all_cores(cp):
    kernel = cp.ElementwiseKernel("T x", "raw int32 bins", "atomicAdd(&bins[(int)x % 7], 1)")
    bins = cp.zeros(7, "i4")
    kernel(cp.arange(700_000), bins)
    assert bins.get().tolist() == [100_000] * 7


def test_a_clients_own_atomics_stand_beside_cudas(cp):
    """An overload for another type hides none of CUDA's; a template takes the types that CUDA has no function for."""
    source = r"""
__device__ short atomicAdd(short* place, short value) { *place = 7; return 0; }
template <typename T> __device__ T atomicMax(T* place, T value);
using Byte = signed char;
template <> __device__ Byte atomicMax<Byte>(Byte* place, Byte value) { *place = 9; return 0; }
extern "C" __global__ void both(int* a, float* b, short* c, int* d, Byte* e, unsigned* f) {
    atomicAdd(a, 1);
    atomicAdd(b, 0.5f);
    atomicAdd(c, (short)1);
    atomicMax(d, 5);
    atomicMax(e, (Byte)1);
    f[0] = __byte_perm(0x33221100, 0x77665544, 0x6420);
    f[1] = __byte_perm(0x33221100, 0x77665544, 0x3715);
}
"""
    arrays = [cp.zeros(2, dtype) for dtype in ("i4", "f4", "i2", "i4", "i1", "u4")]
    cp.RawKernel(source, "both")((1,), (4,), tuple(arrays))
    assert [int(x[0]) if x.dtype.kind != "f" else float(x[0]) for x in arrays[:5]] == [4, 2.0, 7, 5, 9]
    assert [hex(x) for x in arrays[5].tolist()] == ["0x66442200", "0x33771155"]


def test_elementwise_mistakes(cp):
    kernel = cp.ElementwiseKernel("T x, T y", "T z", SQUARE, "square")
    a = cp.ones(3)
    with pytest.raises(TypeError, match="Wrong number of arguments for 'square'"):
        kernel(a)
    with pytest.raises(TypeError, match="Type is mismatched"):
        kernel(a, a.astype("f4"))
    with pytest.raises(TypeError, match="Unsupported type"):
        kernel(a, np.ones(3))
    with pytest.raises(ValueError, match="Out shape is mismatched"):
        kernel(a, a, cp.ones(4)[:, None])
    with pytest.raises(ValueError, match="Specified 'size' can"):
        kernel(a, a, size=3)
    with pytest.raises(ValueError, match="Loop size is undecided"):
        kernel(1, 2)
    with pytest.raises(ValueError, match="Invalid kernel name"):
        cp.ElementwiseKernel("T x", "T y", "y = x", "1")
    with pytest.raises(ValueError, match="Can not use 'i'"):
        cp.ElementwiseKernel("T i", "T y", "y = i")


def test_what_does_not_compile_poisons_its_results(cp):
    z = cp.ElementwiseKernel("T x", "T z", "z = no_such_function(x)")(cp.ones(3))
    with pytest.raises(cp.cuda.compiler.CompileException, match="no_such_function") as caught:
        z.get()
    assert "no_such_function" in caught.value.source
    assert cp.ones(2).get().tolist() == [1, 1]


# ---- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (0, 2), (1, 2), -1])
def test_reduction_over_any_axes(cp, axis):
    norm = cp.ReductionKernel("T x, T y", "T z", "x * y", "a + b", "z = sqrt(a)", "0", "norm")
    x = np.random.rand(7, 33, 12)
    for a, b in ((x, x), (x.T.copy().T, x), (x[::-1, ::2], x[::-1, ::2] * 2), (x, x[:, :1])):
        expected = np.sqrt((a * b).sum(axis))
        before = rounds(cp)
        result = norm(cp.asarray(a), cp.asarray(b), axis=axis)
        assert rounds(cp) == before
        assert result.shape == expected.shape
        np.testing.assert_allclose(result.get(), expected)
        kept = norm(cp.asarray(a), cp.asarray(b), axis=axis, keepdims=True)
        np.testing.assert_allclose(kept.get(), np.sqrt((a * b).sum(axis, keepdims=True)))


def test_reduction_types_and_index(cp):
    where = cp.ReductionKernel(
        "T x", "int64 z", "pair(x, _J)", "less(a, b)", "z = a.at", "pair()", reduce_type="pair",
        preamble="""struct pair { T value; long long at; __device__ pair() : value(1e30), at(-1) {}
                    __device__ pair(T v, long long at) : value(v), at(at) {} };
                    __device__ pair less(pair a, pair b) { return b.value < a.value ? b : a; }""",
    )  # fmt: skip
    x = np.random.rand(40, 300)
    np.testing.assert_array_equal(where(cp.asarray(x), axis=1).get(), x.argmin(1))
    np.testing.assert_array_equal(where(cp.asarray(x), axis=0).get(), x.argmin(0))
    assert int(where(cp.asarray(x))) == x.argmin()


def test_large_reduction_uses_every_part(cp):
    total = cp.ReductionKernel("T x", "int64 z", "x", "a + b", "z = a", "0", "total")
    assert int(total(cp.arange(1_000_003, dtype="i4"))) == 1_000_003 * 1_000_002 // 2


def test_reduction_mistakes(cp):
    kernel = cp.ReductionKernel("T x", "T z", "x", "max(a, b)", "z = a", None, "largest")
    with pytest.raises(ValueError, match="no identity"):
        kernel(cp.ones(0))
    with pytest.raises(np.exceptions.AxisError):
        kernel(cp.ones(3), axis=1)
    with pytest.raises(TypeError, match="Wrong number of arguments"):
        kernel(cp.ones(3), cp.ones(3), cp.ones(3))


# ---- raw ------------------------------------------------------------------------------------------

RAW = r"""
#include <cupy/complex.cuh>
__constant__ float table[4];
__device__ int calls = 0;
extern "C" {
__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) { z[i] = x[i] + y[i]; atomicAdd(&calls, 1); }
}
__global__ void look(float* x) { x[threadIdx.x] = table[threadIdx.x]; }
}
template <typename T> __global__ void square(T* x) { x[threadIdx.x] *= x[threadIdx.x]; }
"""


def test_raw_kernel_never_waits(cp):
    kernel = cp.RawKernel(RAW, "add")
    x, z = cp.arange(100, dtype="f4"), cp.zeros(100, "f4")
    before = rounds(cp)
    kernel((7,), (16,), (x, x, z, 100))
    assert rounds(cp) == before
    np.testing.assert_array_equal(z.get(), 2 * np.arange(100))
    part = cp.zeros(10, "f4")
    kernel((1,), (16,), (x[50:], x, part[5:], cp.int32(5)))
    assert part.get().tolist() == [0] * 5 + [50, 52, 54, 56, 58]
    assert kernel.attributes["max_threads_per_block"] >= 1024
    assert pickle.loads(pickle.dumps(kernel)).name == "add"


def test_module_with_templates_and_variables(cp):
    module = cp.RawModule(code=RAW, name_expressions=["square<int>", "square<complex<double>>"])
    table = cp.ndarray((4,), "f4", module.get_global("table"))
    table[...] = cp.asarray([1, 2, 3, 4], dtype="f4")
    x = cp.zeros(4, "f4")
    module.get_function("look")((1,), (4,), (x,))
    assert x.get().tolist() == [1, 2, 3, 4]
    for name, dtype in (("square<int>", "i4"), ("square<complex<double>>", "c16")):
        x = (cp.arange(4) + 1).astype(dtype)
        module.get_function(name)((1,), (4,), (x,))
        np.testing.assert_array_equal(x.get(), [1, 4, 9, 16])
    for missing in ("square<float>", "square", "nothing"):
        with pytest.raises(cp.cuda.driver.CUDADriverError, match="named symbol not found"):
            module.get_function(missing)
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="named symbol not found"):
        module.get_global("nothing")


def test_blocks_with_barriers_and_shared_memory(cp):
    code = r"""extern "C" __global__ void total(const float* x, float* out, int n) {
        extern __shared__ float part[];
        __shared__ int threads;
        int t = threadIdx.x;
        if (t == 0) threads = blockDim.x;
        float v = 0;
        for (int i = blockIdx.x * blockDim.x + t; i < n; i += blockDim.x * gridDim.x) v += x[i];
        part[t] = v;
        __syncthreads();
        for (int k = threads / 2; k > 0; k /= 2) { if (t < k) part[t] += part[t + k]; __syncthreads(); }
        if (t == 0) atomicAdd(out, part[0]);
    }"""
    out = cp.zeros(1, "f4")
    cp.RawKernel(code, "total")((8,), (128,), (cp.ones(10_000, "f4"), out, 10_000), shared_mem=512)
    assert float(out[0]) == 10_000


def test_warps(cp):
    code = r"""extern "C" __global__ void warp(int* sum, int* vote, int* counted) {
        int lane = threadIdx.x % 32, v = lane;
        for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffff, v, o);
        if (lane < 8) v += __shfl_sync(0xff, lane, 3);
        sum[threadIdx.x] = v;
        vote[threadIdx.x] = __ballot_sync(0xffffffff, lane < 3) + __any_sync(0xffffffff, lane == 40);
        counted[threadIdx.x] = __syncthreads_count(threadIdx.x % 2);
        if (threadIdx.x >= 40) return;
        __syncthreads();
    }"""
    arrays = [cp.zeros(64, "i4") for _ in range(3)]
    cp.RawKernel(code, "warp")((1,), (64,), tuple(arrays))
    assert arrays[0].get().tolist() == ([499] * 8 + [496] * 24) * 2
    assert arrays[1].get().tolist() == [7] * 64
    assert arrays[2].get().tolist() == [32] * 64


def test_structs_pointers_and_halves(cp):
    code = r"""#include <cuda_fp16.h>
    struct two { float a; double b; };
    extern "C" __global__ void mix(two s, const half* h, double* out, double factor) {
        out[threadIdx.x] = s.a + s.b * __half2float(h[threadIdx.x]) * factor;
    }"""
    struct = np.array([(1, 2)], np.dtype([("a", "f4"), ("b", "f8")], align=True))
    h, memory = cp.arange(4, dtype="f2"), cp.cuda.alloc(32)
    cp.RawKernel(code, "mix")((1,), (4,), (struct, h, memory, 0.5))
    assert cp.ndarray((4,), "f8", memory).get().tolist() == [1, 2, 3, 4]


def test_raw_mistakes_come_at_the_next_wait(cp):
    x = cp.zeros(3, "f4")
    cp.RawKernel('extern "C" __global__ void f(float* x) { broken(x); }', "f")((1,), (1,), (x,))
    with pytest.raises(cp.cuda.compiler.CompileException, match="broken"):
        x.get()
    with pytest.raises(cp.cuda.compiler.CompileException, match="broken"):
        cp.RawKernel('extern "C" __global__ void f(float* x) { broken(x); }', "f").compile()
    with pytest.raises(TypeError, match="numpy.ndarray of shape"):
        cp.RawKernel(RAW, "add")((1,), (1,), (np.zeros(3), x, x, 3))
    with pytest.raises(TypeError, match="Exactly one of"):
        cp.RawModule()


def test_a_crash_costs_its_session_only(cp):
    from rgpu.errors import WorkerLost

    with cp.cuda.Device(1):
        other = cp.ones(3)
    kernel = cp.RawKernel('extern "C" __global__ void f(long long* x) { x[1ll << 40] = 1; }', "f")
    x = cp.zeros(1, "i8")
    kernel((1,), (1,), (x,))
    with pytest.raises(WorkerLost):
        x.get()
    assert other.get().tolist() == [1, 1, 1]


def test_fuse_is_the_function(cp):
    @cp.fuse(kernel_name="squares")
    def squares(x, y):
        return cp.sum((x - y) ** 2)

    assert float(squares(cp.arange(3), cp.ones(3))) == 2


# ---- who may ------------------------------------------------------------------------------------


@pytest.fixture
def refusing(monkeypatch):
    """A server whose operator allows no native kernels."""
    import rgpu
    from tests.support.servers import Server

    monkeypatch.setenv("RGPU_ALLOW_NATIVE_KERNELS", "0")
    with Server("cpu:1", "strict") as server:
        rgpu.connect(server.address)
        yield rgpu
        rgpu.close()


def test_a_server_may_refuse_native_code(refusing):
    z = refusing.ElementwiseKernel("T x", "T z", "z = x")(refusing.ones(3))
    with pytest.raises(NotImplementedError, match="--allow-native-kernels"):
        z.get()
    x = refusing.zeros(3, "f4")
    refusing.RawKernel(RAW, "add")((1,), (1,), (x, x, x, 3))
    with pytest.raises(NotImplementedError, match="--allow-native-kernels"):
        refusing.cuda.Device().synchronize()
    assert refusing.ones(2).get().tolist() == [1, 1]


GRID = r"""
#include <cooperative_groups.h>
struct Pair { int a; __device__ bool operator==(const Pair& o) const { return a == o.a; } };
extern "C" __global__ void turn(const float* x, float* y, int n) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    int size = gridDim.x * blockDim.x, tid = blockDim.x * blockIdx.x + threadIdx.x;
    __shared__ float mine[64];
    mine[threadIdx.x] = blockIdx.x;
    for (int i = tid; i < n; i += size) y[i] = x[i];
    grid.sync();
    for (int i = n - 1 - tid; i >= 0; i -= size) y[i] += 100 * (mine[threadIdx.x] == blockIdx.x);
}
"""


@pytest.mark.parametrize("blocks", [1, 7, 500])  # the last are more than can meet: fewer are run, as CuPy does
def test_blocks_of_a_cooperative_launch_wait_for_one_another(cp, blocks):
    kernel = cp.RawKernel(GRID, "turn", enable_cooperative_groups=True)
    x = cp.arange(10_000, dtype="f4")
    y = cp.zeros_like(x)
    kernel((blocks,), (64,), (x, y, 10_000))
    np.testing.assert_array_equal(y.get(), np.arange(10_000) + 100)


def test_complex_division_is_rounded_as_numpys(cp):
    random = np.random.default_rng(3)
    a, b = (random.random(1000) + 1j * random.random(1000) for _ in "ab")
    divide = cp.ElementwiseKernel("T a, T b", "T c", "c = a / b")
    for dtype in "FD":
        x, y = a.astype(dtype), b.astype(dtype)
        np.testing.assert_array_equal(divide(cp.asarray(x), cp.asarray(y)).get(), x / y)


def test_the_cache_of_binaries_is_bounded_by_use(tmp_path):
    import os

    from rgpu.server.kernels_cpu import build

    for number in range(10):
        path = tmp_path / f"{number}.so"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    os.utime(tmp_path / "0.so")  # used again
    build.trim(tmp_path, 1000)
    assert len(list(tmp_path.iterdir())) == 10
    build.trim(tmp_path, 700)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["0", "6", "7", "8", "9"]


def test_the_magnitude_of_complex_numbers_is_numpys(cp):
    random = np.random.default_rng(4)
    special = [0, np.inf + 1j, complex(np.nan, 1), 3 + 4j]
    z = np.concatenate([random.random(500) * 1e200 + 1j * random.random(500), special])
    size = cp.ElementwiseKernel("complex128 z", "float64 r", "r = abs(z)")
    np.testing.assert_array_equal(size(cp.asarray(z)).get(), np.abs(z))


def test_a_raw_kernel_takes_arrays_with_their_shapes(cp):
    code = r"""
    #include <cupy/carray.cuh>
    extern "C" __global__ void rows(const CArray<float, 2> x, CArray<float2, 1> out, int n, CArray<double, 0> size) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= x.shape()[0] || i >= n) return;
        float2 row = make_float2(0, x.strides()[0]);
        for (int j = 0; j < x.shape()[1]; ++j) {
            ptrdiff_t at[] = {i, j};
            row.x += x[at];
        }
        out[i] = row;
        if (i == 0) size[0] = x.size();
    }"""
    x = cp.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    out, size = cp.zeros(4, np.complex64), cp.zeros(())
    cp.RawKernel(code, "rows")((1,), (32,), (x, out, np.int32(3), size))
    assert out.tolist() == [6 + 24j, 24 + 24j, 42 + 24j, 0] and size.item() == 12


def test_cudas_functions_of_numbers(cp):
    """Of one operand or more, in both precisions; what C has under the same name as well."""
    code = r"""
    extern "C" __global__ void f(double* o) {
        double x = 0.5, s, c, ps, pc, v[2] = {3, 4};
        float xf = 2.5f, sf, cf, psf, pcf, vf[2] = {3, 4};
        sincos(x, &s, &c), sincos(xf, &sf, &cf), sincospi(x, &ps, &pc), sincospi(0.5f, &psf, &pcf);
        double all[] = {s, c, sf, cf, ps, pc, psf, norm(2, v), normf(2, vf), rnorm(2, v), rnormf(2, vf),
            norm4d(1, 1, 1, 1), norm4df(1, 1, 1, 1), rnorm3d(2, 0, 0), rnorm3df(2, 0, 0), rnorm4d(1, 1, 1, 1),
            rnorm4df(1, 1, 1, 1), rhypot(3, 4), rhypotf(3, 4), __dsqrt_rn(4), __drcp_rn(4), __frsqrt_rn(4),
            double(__double2int_rz(-1.5)), double(__double2ll_rd(-1.5)), double(__float2ll_rn(xf)),
            double(__float2int_ru(xf)), double(__double2uint_rn(3.5)), __int2double_rn(3), __ll2double_rn(-3),
            __hiloint2double(0x40080000, 0), double(__rhadd(3, 4)), double(__uhadd(3, 4)), double(__sad(-1, 2, 3u)),
            double(__usad(5, 2, 3)), double(__dp4a(0x01020304, 0x01010101, 5)), double(__dp4a(-1, 1, 0))};
        for (int i = 0; i < 36; ++i) o[i] = all[i];
    }"""
    out = cp.zeros(36)
    cp.RawKernel(code, "f")((1,), (1,), (out,))
    sines = [np.sin(0.5), np.cos(0.5), np.sin(2.5), np.cos(2.5), 1, 0, 1]
    norms = [5, 5, 0.2, 0.2, 2, 2, 0.5, 0.5, 0.5, 0.5, 0.2, 0.2, 2, 0.25, 0.5]
    whole = [-1, -2, 2, 3, 4, 3, -3, 3, 4, 3, 6, 6, 15, -1]
    np.testing.assert_allclose(out.get(), sines + norms + whole, rtol=1e-6, atol=1e-15)


def test_a_kernel_may_be_declared_by_a_macro(cp):
    code = r"""
    #ifdef __CUDACC__
        #define KERNEL __global__
        #define EXPORTED extern "C" KERNEL
    #else
        #define KERNEL
    #endif
    extern "C" {
    KERNEL void twice(int* x) { x[threadIdx.x] *= 2; }
    }
    #define LAUNCHED  extern "C" __global__  // in C
    LAUNCHED void more(int* x) { x[threadIdx.x] += 1; }"""
    x, module = cp.arange(3, dtype=np.int32), cp.RawModule(code=code)
    for name in ("twice", "more"):
        module.get_function(name)((1,), (3,), (x,))
    assert x.tolist() == [1, 3, 5]
