"""Names that CuPy calls private and libraries built on it import all the same."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_results_are_remembered_for_each_device(cp):
    calls = []

    @cp.memoize(for_each_device=True)
    def make(x, scale=1):
        calls.append(cp.cuda.Device().id)
        return cp.full(2, x * scale)

    assert make(3) is make(3)
    assert make(3, scale=2).tolist() == [6, 6]
    with cp.cuda.Device(1):
        assert make(3).device.id == 1
    assert calls == [0, 0, 1]
    cp.clear_memo()
    make(3)
    assert calls == [0, 0, 1, 0]


def test_functions_made_of_loops(cp):
    core = cp._core
    mix = core.create_ufunc(
        "mix",
        ("ff->f", "dd->d", ("DD->D", "out0 = in0 * in1")),
        "out0_type t = in0; out0 = twice(t) + in1",
        preamble="template<class T> __device__ T twice(T x) { return 2 * x; }",
    )
    x = cp.arange(4, dtype="f4")
    assert (mix.nin, mix.nout, mix.types) == (2, 1, ["ff->f", "dd->d", "DD->D"])
    assert mix(x, 1).dtype == np.float32 and mix(x, 1).tolist() == [1, 3, 5, 7]
    assert mix(x[:, None], cp.arange(2)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mix(2j, x).tolist() == [0, 2j, 4j, 6j]
    out = cp.zeros(4, "f8")
    assert mix(x, 1, out) is out and out.tolist() == [1, 3, 5, 7]
    with pytest.raises(TypeError, match="casting rule"):
        mix(x, 1, cp.zeros(4, "i4"))
    with pytest.raises(TypeError, match="Unsupported type"):
        mix(np.arange(4), x)
    total = core.create_reduction_func("total", ("f->f", "d->d"), ("in0 * in0", "a + b", "out0 = a", None), 0)
    assert total(x.reshape(2, 2), axis=1).tolist() == [1, 13]


def test_small_helpers(cp):
    core = cp._core
    assert cp.isscalar(1.5) and not cp.isscalar(cp.array(1.5))  # as numpy.isscalar, which CuPy calls
    target = cp.zeros((2, 3), "i4")
    assert core.elementwise_copy(cp.array([1.5, 2.5, -3.5]), target) is target
    assert target.tolist() == [[1, 2, -3]] * 2
    assert core.ndarray is cp.ndarray and core.core.ndarray is cp.ndarray
    assert core._get_warpsize() == cp.cuda.Device().attributes["WarpSize"]
    assert int(core._full_mask_hex(), 16) == core._full_mask() == 2 ** core._get_warpsize() - 1
    assert core._scalar.get_typename("complex64") == "complex<float>"
    internal = core.internal
    assert internal._normalize_axis_indices((-1, 0), 3) == (0, 2)
    assert internal._normalize_axis_indices(None, 2) == (0, 1)
    assert [internal.clp2(n) for n in (0, 1, 5, 8)] == [0, 1, 8, 8]
    assert internal.infer_unknown_dimension((2, -1), 6) == [2, 3]
    assert internal.get_c_contiguity((2, 1, 3), (12, 99, 4), 4)
    assert internal.complete_slice(slice(None, -1, 2), 6) == slice(0, 5, 2)
    assert cp._default_memory_pool is cp.get_default_memory_pool()
    assert cp._default_pinned_memory_pool is cp.get_default_pinned_memory_pool()
    with pytest.raises(TypeError, match=r"'x' must be a cupy\.ndarray"):
        cp._util.check_array(1, arg_name="x")


def test_they_are_imported_as_of_cupy():
    """In a new interpreter, where nothing of them was loaded: their modules are CuPy's by name, never rgpu's own."""
    program = """
import rgpu; rgpu.install()
import cupy._core.internal, cupy._util
from cupy._core._routines_indexing import _ndarray_argwhere
from cupy import _core, _environment
assert cupy._core is _core and cupy._core.internal.prod((2, 3)) == 6
assert cupy._util.memoize is cupy.memoize and _environment.get_nvcc_path() is None
assert not hasattr(cupy, "_no_such_name")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
