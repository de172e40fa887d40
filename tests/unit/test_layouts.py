"""Layouts and shadows agree with NumPy, without a device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rgpu.client import meta as layouts
from rgpu.functions import views

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def strided(data, shape):
    """An array of some layout: transposed, sliced, turned around."""
    array = np.zeros([n * 2 for n in shape]) if shape else np.zeros(())
    steps = [data.draw(st.sampled_from([1, 2, -1, -2])) for _ in shape]
    array = array[(*[slice(None, None, step) for step in steps], ...)]
    return array.transpose(data.draw(st.permutations(range(len(shape)))))


def meta_of(array):
    return layouts.intern(array.shape, array.dtype, array.strides)


@given(SHAPES, st.sampled_from("CF"))
def test_new_layouts_have_numpys_strides(shape, order):
    truth = np.empty(shape, "f4", order)
    found = layouts.ordered(layouts.fresh(shape, np.dtype("f4")), order)
    assert found.strides == truth.strides
    assert (found.c, found.f) == (truth.flags.c_contiguous, truth.flags.f_contiguous)


@given(st.data(), SHAPES)
def test_contiguity_is_numpys(data, shape):
    array = strided(data, shape)
    meta = meta_of(array)
    assert (meta.c, meta.f) == (array.flags.c_contiguous, array.flags.f_contiguous)
    assert (meta.size, meta.nbytes, meta.shadow.shape) == (array.size, array.nbytes, array.shape)


@given(st.data(), SHAPES, st.sampled_from("CFA"))
def test_copies_have_numpys_order(data, shape, order):
    array = strided(data, shape)
    found, truth = layouts.ordered(meta_of(array), order), array.copy(order)
    if truth.size:
        assert [s for s, n in zip(found.strides, truth.shape) if n > 1] == [
            s for s, n in zip(truth.strides, truth.shape) if n > 1
        ]


@given(st.data(), st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_reshape_is_a_view_where_numpys_is(data, shape):
    array = strided(data, shape)
    target = data.draw(
        st.sampled_from([(array.size,), (1, array.size), array.shape[::-1], (*array.shape, 1)])
    )
    found = views._reshaped(meta_of(array).shadow, target, "C")
    truth = array.reshape(target)
    is_view = found is not None  # a shadow must not be printed: nothing is there
    assert is_view == np.shares_memory(truth, array)
    if is_view:
        assert [s for s, n in zip(found.strides, target) if n > 1] == [
            s for s, n in zip(truth.strides, target) if n > 1
        ]


def test_a_view_of_a_shadow_tells_its_place():
    meta = layouts.fresh((4, 6), np.dtype("f8"))
    found, offset = layouts.view_of_shadow(meta.shadow[1:, ::-2])
    assert (found.shape, found.strides, offset) == ((3, 3), (48, -16), 48 + 5 * 8)
    assert layouts.view_of_shadow(np.zeros(3)) is None


def test_equal_layouts_are_one_object():
    assert layouts.fresh((2, 3), np.dtype("i4")) is layouts.intern((2, 3), np.dtype("i4"), (12, 4))


@pytest.mark.parametrize(
    ("shape", "size", "result"), [((2, -1), 6, (2, 3)), (-1, 4, (4,)), ((), 1, ()), ((0, 3), 0, (0, 3))]
)
def test_an_unknown_extent_is_completed(shape, size, result):
    assert views._complete(shape, size) == result


@pytest.mark.parametrize(
    ("shape", "size"), [((-1, -1), 4), ((3, -1), 4), ((2, 3), 5), ((-2, 2), 4), ((0, -1), 0)]
)
def test_shapes_that_do_not_fit_are_refused(shape, size):
    with pytest.raises(ValueError):
        views._complete(shape, size)
