"""cupy.testing as libraries use it: what its decorators let pass, what they refuse, and under which names pytest sees
their tests. CuPy's own tests of it are run by scripts/conformance --dir testing."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
import pytest

import rgpu as cp
from rgpu import testing

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", autouse=True)
def server():
    cp.connect("local")
    yield
    cp.close()


def test_equal_results_pass_and_others_do_not():
    @testing.for_all_dtypes(no_bool=True)
    @testing.numpy_cupy_allclose(rtol={np.float16: 1e-2, "default": 1e-5})
    def right(xp, dtype):
        return testing.shaped_random((3, 4), xp, dtype).sum(axis=0)

    @testing.numpy_cupy_array_equal()
    def wrong(xp):
        return xp.arange(3) + (xp is cp)

    @testing.numpy_cupy_array_equal()
    def of_another_type(xp):
        return xp.arange(3, dtype="f" if xp is cp else "d")

    @testing.numpy_cupy_array_equal()
    def of_another_shape(xp):
        return xp.zeros((3, 1) if xp is cp else 3)

    @testing.numpy_cupy_array_equal()
    def nothing(xp):
        xp.arange(3)

    right()
    for case in (wrong, of_another_type, of_another_shape, nothing):
        with pytest.raises(AssertionError):
            case()


def test_errors_must_agree_and_be_accepted():
    @testing.numpy_cupy_allclose(accept_error=ValueError)
    def both(xp):
        return xp.zeros(3).reshape(2)

    @testing.numpy_cupy_allclose()
    def not_accepted(xp):
        return xp.zeros(3).reshape(2)

    @testing.numpy_cupy_allclose(accept_error=True)
    def one(xp):
        if xp is np:
            raise ValueError("only here")
        return xp.zeros(3)

    @testing.numpy_cupy_allclose(accept_error=True)
    def unlike(xp):
        raise ValueError if xp is np else TypeError

    both()
    for case, said in ((not_accepted, "Both"), (one, "Only numpy"), (unlike, "Different types")):
        with pytest.raises(AssertionError, match=said):
            case()
    with pytest.raises(TypeError, match="xp"):
        testing.numpy_cupy_allclose()(lambda: 1)()  # a test that does not take the module


def test_what_is_undefined_is_not_compared():
    """A negative number made unsigned."""

    def cast_to(target, wrong_from):
        @testing.for_dtypes([target], "dtype")
        @testing.numpy_cupy_array_equal()
        def cast(xp, dtype, source=np.float32):
            a = xp.arange(-3, 3).astype(source)
            cast = a.astype(dtype)
            return xp.where(a >= wrong_from, cast, 99) if xp is cp and dtype is np.uint8 else cast

        return cast

    cast_to("B", 0)(source=np.float32)
    with pytest.raises(AssertionError):
        cast_to("B", 1)(source=np.float32)
    seen = []

    @testing.for_dtypes_combination("fdBH", names=("a", "b"))
    def count(a, b):
        seen.append((a, b))

    count()
    assert {a for a, _ in seen} == {b for _, b in seen} == set("fdBH")


def test_each_order_and_axis():
    seen = []

    @testing.for_CF_orders()
    def orders(order):
        seen.append(order)

    class Axes:
        @testing.for_contiguous_axes()
        def axes(self, shape, order, axis):
            seen.append(axis)

    orders()
    Axes().axes(shape=(1, 2, 3), order="F")
    assert seen == [None, "C", "F", "c", "f", (0,), (0, 1), (0, 1, 2)]


def test_random_numbers_are_fixed_and_put_back():
    @testing.fix_random()
    def test_numbers():
        return drawn.append((testing.generate_seed(), np.random.rand(), float(cp.random.rand())))

    drawn = []
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    test_numbers()
    test_numbers()
    assert drawn[0] == drawn[1] and np.random.rand() == expected
    with pytest.raises(RuntimeError, match="fix_random"):
        testing.generate_seed()


def test_what_is_installed():
    assert testing.installed("cupy>=14", "numpy") and testing.numpy_satisfies(">1.20")
    assert not testing.installed("numpy>100") and not testing.installed("a_package_nobody_has")


PROGRAM = """
import unittest
import pytest
from cupy import testing

@testing.parameterize(*testing.product({"n": [2, 3], "f": [abs]}))
class TestPlain:
    @testing.for_float_dtypes()
    @testing.numpy_cupy_array_equal()
    def test_n(self, xp, dtype):
        return xp.full(self.n, self.f(-self.n), dtype)

    @pytest.mark.parametrize("k", [0, 1])
    @testing.numpy_cupy_equal()
    def test_pytests_own(self, xp, k):
        return int(xp.arange(self.n)[k])

@testing.parameterize({"n": 2}, {"n": 4})
class TestCase(unittest.TestCase):
    def test_even(self):
        assert self.n % 2 == 0

@testing.with_requires("numpy>100")
def test_of_the_future():
    assert False

@testing.multi_gpu(2)
def test_two():
    pass
"""


def test_under_pytest(tmp_path):
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "rgpu.cli", "run", "--", sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider",
         "-W", "ignore", "--rootdir", tmp_path, "test_program.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(cp.__file__).parents[1])},
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert "9 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "TestPlain::test_n[_param_1_{f=abs, n=3}]" in done.stdout
    assert "TestCase_param_1_{n=4}::test_even" in done.stdout


def test_bases_for_tests_of_aliases():
    class Case(testing.NumpyAliasValuesTestBase):
        func, args = "can_cast", ("i4", "i8")

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.testsRun == 1 and result.wasSuccessful(), result.failures + result.errors
