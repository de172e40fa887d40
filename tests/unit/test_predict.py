"""A prediction must equal NumPy's truth, over shapes, dtypes and axes; or say that it does not know."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgpu.client import predict
from rgpu.client.meta import Meta, fresh
from rgpu.wire.functions import BY_NAME

pytestmark = pytest.mark.timeout(120)

DTYPES = st.sampled_from([np.dtype(c) for c in "?bBhHiIlLefdFD"])
FLOATS = st.sampled_from([np.dtype(c) for c in "fdFD"])
EXTENTS = st.one_of(st.integers(1, 4), st.integers(5, 12))
SHAPES = st.lists(EXTENTS, min_size=1, max_size=3).map(tuple)


def predicted(name, *args, **kwargs):
    return predict.predict(name, BY_NAME[name].kind, args, kwargs)


def truth(name, *args, **kwargs):
    """What NumPy makes of ones of these layouts; None where it refuses."""

    def real(x):
        if type(x) is Meta:
            return (
                np.eye(*x.shape, dtype=x.dtype)
                if name.startswith("linalg.") and x.ndim == 2
                else np.ones(x.shape, x.dtype)
            )
        return type(x)(real(item) for item in x) if isinstance(x, tuple | list) else x

    function = np
    for part in name.split("."):
        function = getattr(function, part)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*map(real, args), **{key: real(x) for key, x in kwargs.items()})
        except (ValueError, TypeError, IndexError, np.linalg.LinAlgError):
            return None


def layouts(result):
    if isinstance(result, tuple | list):
        return [layouts(x) for x in result]
    return (np.asarray(result).shape, np.asarray(result).dtype)


def described(tree):
    return [described(x) for x in tree] if isinstance(tree, tuple | list) else (tree.shape, tree.dtype)


def check(name, *args, **kwargs):
    expected, tree = truth(name, *args, **kwargs), predicted(name, *args, **kwargs)
    if expected is None:
        assert tree is None, "predicted what NumPy refuses"
    elif tree is not None:
        assert described(tree) == layouts(expected)
    return expected is None or tree is not None


REDUCTIONS = (
    "sum prod mean std max min any all argmax median nansum nanmean count_nonzero ptp average".split()
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(REDUCTIONS), SHAPES, DTYPES, st.integers(-3, 3) | st.none(), st.booleans())
def test_reductions(name, shape, dtype, axis, keepdims):
    assert check(name, fresh(shape, dtype), axis=axis, **({"keepdims": True} if keepdims else {}))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["cumsum", "cumprod", "nancumsum"]), SHAPES, DTYPES, st.integers(-3, 3) | st.none())
def test_scans(name, shape, dtype, axis):
    assert check(name, fresh(shape, dtype), axis=axis)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"]), SHAPES,
       DTYPES, DTYPES,        EXTENTS, st.integers(-2, 2))  # fmt: skip
def test_joins(name, shape, left, right, extent, axis):
    other = shape if name == "stack" else (extent, *shape[1:])
    options = {"axis": axis} if name in ("concatenate", "stack") else {}
    assert check(name, [fresh(shape, left), fresh(other, right)], **options)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(["matmul", "dot", "tensordot", "inner", "kron", "outer"]), SHAPES, SHAPES, DTYPES, DTYPES
)
def test_products(name, left, right, a, b):
    check(name, fresh(left, a), fresh((left[-1], *right[1:]), b))
    check(name, fresh(left, a), fresh(right, b))


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(["tile", "repeat", "roll", "diff"]), SHAPES, DTYPES, st.integers(0, 4))
def test_resizing(name, shape, dtype, count):
    check(name, fresh(shape, dtype), count)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from("fft ifft rfft irfft".split()),
    SHAPES,
    FLOATS,
    st.integers(1, 20) | st.none(),
    st.integers(-3, 3),
)
def test_transforms_of_one_axis(name, shape, dtype, n, axis):
    if name == "rfft" and dtype.kind == "c":
        dtype = np.dtype(dtype.char.lower())  # CuPy drops the imaginary part where NumPy refuses
    check(f"fft.{name}", fresh(shape, dtype), n, axis)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from("fft2 ifft2 fftn ifftn rfftn irfftn rfft2 irfft2".split()),
    SHAPES,
    st.sampled_from([np.dtype("f"), np.dtype("d")]),
)
def test_transforms_of_several_axes(name, shape, dtype):
    check(f"fft.{name}", fresh(shape, dtype))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from("inv cholesky det slogdet qr svd eigh eigvalsh pinv matrix_rank cond norm".split()),
       st.lists(EXTENTS, min_size=2, max_size=2), FLOATS, st.booleans())  # fmt: skip
def test_linear_algebra(name, shape, dtype, square):
    shape = (shape[0], shape[0] if square else shape[1])
    check(f"linalg.{name}", fresh(shape, dtype))


@settings(max_examples=80, deadline=None)
@given(SHAPES, DTYPES, st.integers(-3, 2) | st.none(), st.sampled_from(["sort", "argsort", "take"]))
def test_selection(shape, dtype, axis, name):
    extra = (fresh((2, 3), np.dtype(int)),) if name == "take" else ()
    if name == "take":
        tree = predicted(name, fresh(shape, dtype), *extra, axis=axis)
        expected = truth(name, fresh(shape, dtype), np.zeros((2, 3), int), axis=axis)
        assert (tree is None) == (expected is None)
        assert expected is None or described(tree) == layouts(expected)
    else:
        assert check(name, fresh(shape, dtype), axis=axis)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(-4, 4), st.integers(0, 9))
def test_triangles(n, k, m):
    assert check("tril_indices", n, k, m)
    assert check("triu_indices", n, k, m)
    assert check("tri", n, m, k)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["ij,jk->ik", "ij,jk", "ii", "ij->ji", "ij,ij->", "i...,...j->ij..."]),
    EXTENTS,
    EXTENTS,
    EXTENTS,
    DTYPES,
)
def test_einsum(subscripts, n, m, k, dtype):
    shapes = {"ii": [(n, n)], "ij->ji": [(n, m)], "ij,ij->": [(n, m), (n, m)]}.get(
        subscripts, [(n, m), (m, k)]
    )
    check("einsum", subscripts, *[fresh(shape, dtype) for shape in shapes])


@pytest.mark.parametrize("name", "sum max svd sort".split())
def test_large_arrays_cost_nothing_to_predict(name):
    name = f"linalg.{name}" if name == "svd" else name
    tree = predicted(name, fresh((100_000, 50_000), np.dtype(float)))
    assert tree is not None


def test_only_data_can_tell():
    condition = fresh((3,), np.dtype(bool))
    assert predicted("where", condition) is predict.WAIT
    assert predicted("histogram", fresh((9,), np.dtype(float)), fresh((4,), np.dtype(float))) is predict.WAIT
