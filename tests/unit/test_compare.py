"""When two workers' answers are the same: equal bits, or within what the functions that were called declare."""

import hashlib

import numpy as np
import pytest

from rgpu.client.compare import TOLERANCE, Content, difference
from rgpu.wire import ops
from rgpu.wire.functions import BY_NAME, LEEWAY


def content(array):
    array = np.ascontiguousarray(array)
    return Content(memoryview(array.reshape(-1).view(np.uint8)), array.dtype)


def differ(a, b, leeway=0):
    return difference(content(a), content(b), leeway, False) is not None


@pytest.mark.parametrize("leeway", [1, 2])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
def test_a_tolerance_is_a_part_of_the_largest_number(leeway, dtype):
    a = np.array([1000, 1, 0], dtype)
    part = TOLERANCE[leeway][a.real.itemsize]
    for times, wrong in ((0.4, False), (4, True)):
        b = a.copy()
        b[2] += 1000 * part * times
        assert differ(a, b, leeway) == wrong
        assert differ(a, b, 0), "equal bits are asked for where no function declares a tolerance"


def test_what_has_no_tolerance():
    ints = np.arange(5)
    assert not differ(ints, ints.copy(), 2)
    assert differ(ints, ints + [0, 0, 0, 0, 1], 2)
    assert differ(np.array([True, False]), np.array([True, True]), 2)
    assert differ(np.array([b"a"]), np.array([b"b"]), 2)


def test_what_is_not_finite_stands_in_the_same_places():
    a = np.array([np.nan, np.inf, 1.0])
    assert not differ(a, a + [0, 0, 1e-13], 1)
    assert differ(a, np.array([np.nan, -np.inf, 1.0]), 2)
    assert differ(a, np.array([1.0, np.inf, 1.0]), 2)
    assert differ(np.array([np.inf]), np.array([1e300]), 2)


def test_fields_are_compared_each_by_its_kind():
    a = np.array([(1, 1.0)], [("n", "i8"), ("x", "f8")])
    near, far = a.copy(), a.copy()
    near["x"] += 1e-13
    far["n"] += 1
    assert not differ(a, near, 1) and differ(a, near, 0) and differ(a, far, 2)


def test_a_digest_stands_for_equal_bits():
    a = content(np.arange(100.0))
    digest = ops.Digest.Record(1, hashlib.sha256(a.data).digest())
    assert difference(a, digest, 0, False) is None
    first, second = difference(a, ops.Digest.Record(1, bytes(32)), 2, False)
    assert first.startswith("SHA-256") and second == "SHA-256 " + "0" * 16


def test_answers_in_plain_values():
    def said(value):
        return ops.Done.Record(1, value)

    assert difference(said([1, {"a": 2.0}]), said([1, {"a": 2.0}]), 0, False) is None
    assert difference(said([1, {"a": 2.0}]), said([1, {"a": 2.0 + 1e-12}]), 1, False) is None
    assert difference(said([1, {"a": 2.0}]), said([1, {"a": 2.0 + 1e-12}]), 0, False) is not None
    assert difference(said([1]), said([2]), 2, False) is not None
    assert difference(said("one card"), said("another"), 0, True) is None, "each may say what it is itself"


def test_functions_declare_whether_their_results_may_differ():
    exact = ("add", "multiply", "sort", "take", "where", "argmax", "copy", "bitwise_and")
    assert all(BY_NAME[name].id not in LEEWAY for name in exact if name in BY_NAME)
    assert {LEEWAY[BY_NAME[name].id] for name in ("sum", "matmul", "linalg.svd", "exp") if name in BY_NAME} <= {1, 2}
    assert set(LEEWAY.values()) <= set(TOLERANCE)
