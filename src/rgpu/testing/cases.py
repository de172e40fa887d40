"""What a test class or function is marked with: its parameters, what it needs, its random numbers.

pytest and packaging are asked for when they are used: a program that only imports this has no need of them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import itertools
import os
import random
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu._version import CUPY_VERSION

_SEEDS = 99, 100, 101  # of Python's, NumPy's and the devices' numbers
_LONGEST = 100  # characters of a parameter in the name of a test
_depth = 0
_before: Any = None


# Parameters


def product(parameter: dict[str, Any]) -> list[dict]:
    """Every choice of one value for each key."""
    keys = sorted(parameter)
    return [dict(zip(keys, values)) for values in itertools.product(*(parameter[key] for key in keys))]


def product_dict(*parameters: Any) -> list[dict]:
    """Every choice of one dictionary from each sequence, joined."""
    return [{k: v for one in chosen for k, v in one.items()} for chosen in itertools.product(*parameters)]


def _shown(value: Any) -> str:
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else repr(value)
    half = (_LONGEST - 3) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}...{text[half + 3 - _LONGEST :]}"


def _named(base: str, number: int, parameter: dict) -> str:
    said = ", ".join(f"{key}={_shown(value)}" for key, value in sorted(parameter.items()))
    return f"{base}_param_{number}_{{{said}}}"


def parameterize(*params: dict, _ids: bool = True) -> Callable[[type], Any]:
    """Run the tests of a class once for each dictionary, whose items are attributes of the instance. A
    ``unittest.TestCase`` becomes one class for each, in its module, and its own name None."""

    def decorator(base: type) -> Any:
        if not issubclass(base, unittest.TestCase):
            return _with_fixture(base, params, _ids)
        module = sys.modules[base.__module__]
        tests = {k: v for k, v in inspect.getmembers(base, inspect.isfunction) if k.startswith("test_")}
        for number, parameter in enumerate(params):
            given = {k: staticmethod(v) if isinstance(v, types.FunctionType) else v for k, v in parameter.items()}
            name = _named(base.__name__, number, parameter)
            setattr(module, name, type(name, (base,), {"__module__": base.__module__, **given, **tests}))
        return None

    return decorator


def _with_fixture(base: type, params: tuple[dict, ...], ids: bool) -> type:
    import pytest

    if hasattr(base, "_cupy_testing_parameterize"):
        raise RuntimeError("do not `@testing.parameterize` twice")

    def fill(self: Any, _cupy_testing_param: dict) -> None:
        self.__dict__.update(_cupy_testing_param)

    cases = [
        pytest.param(parameter, id=_named("", number, parameter) if ids else str(number))
        for number, parameter in enumerate(params)
    ]
    members = {"__module__": base.__module__, "_cupy_testing_parameterize": pytest.fixture(autouse=True)(fill)}
    made = type(base.__name__, (base,), members)
    return pytest.mark.parametrize("_cupy_testing_param", cases)(made)


# Needs


def installed(*specifiers: str) -> bool:
    """Whether all of these requirements (``numpy>=2.1``) are met here."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, specifiers):
        try:
            found = CUPY_VERSION if requirement.name == "cupy" else importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:  # known by what is imported
            distributions = importlib.metadata.packages_distributions().get(requirement.name)
            if not distributions:
                return False
            found = importlib.metadata.version(distributions[0])
        if requirement.specifier and not requirement.specifier.contains(found, prereleases=True):
            return False
    return True


def with_requires(*requirements: str) -> Callable[[Callable], Callable]:
    """Skip the test unless these requirements are met."""
    reason = f"requires: {','.join(requirements)}"
    try:
        import pytest
    except ImportError:
        return unittest.skipIf(not installed(*requirements), reason)
    return pytest.mark.skipif(not installed(*requirements), reason=reason)


def numpy_satisfies(version_range: str) -> bool:
    """Whether NumPy is of these versions."""
    return installed(f"numpy{version_range}")


def slow(*args: Any, **kwargs: Any) -> Any:
    """pytest's mark of that name."""
    import pytest

    return pytest.mark.slow(*args, **kwargs)


def multi_gpu(gpu_num: int) -> Callable[[Callable], Callable]:
    """Mark a test of several devices; skipped where ``CUPY_TEST_GPU_LIMIT`` allows fewer."""
    import pytest

    if gpu_num < 2:
        raise ValueError("a test of several devices has at least two")
    limit = int(os.environ.get("CUPY_TEST_GPU_LIMIT", "-1"))

    def decorator(test: Callable) -> Callable:
        few = pytest.mark.skipif(0 <= limit < gpu_num, reason=f"{gpu_num} GPUs required")
        return few(pytest.mark.multi_gpu(test))

    return decorator


# Random numbers


def _set_up() -> None:
    """Seed every generator, the outermost time."""
    global _depth, _before
    if not _depth:
        from rgpu.random import _generator

        _before = random.getstate(), np.random.get_state(), _generator._random_states
        _generator.reset_states()
        fixed = os.environ.get("CUPY_TEST_RANDOM_NONDETERMINISTIC", "0") in ("", "0")
        ours, numpys, devices = _SEEDS if fixed else (None, None, None)
        random.seed(ours)
        np.random.seed(numpys)
        _generator.seed(devices)
    _depth += 1


def _tear_down() -> None:
    """As it was before."""
    global _depth, _before
    _depth -= 1
    if not _depth:
        from rgpu.random import _generator

        ours, numpys, _generator._random_states = _before
        random.setstate(ours)
        np.random.set_state(numpys)
        _before = None


def generate_seed() -> int:
    """A seed, the same in every run of a test under ``fix_random``."""
    if not _depth:
        raise RuntimeError("random is not set up: use this under fix_random")
    return int(np.random.randint(0x7FFFFFFF))


def fix_random() -> Callable[[Any], Any]:
    """The same random numbers, of Python's, NumPy's and the devices' generators, in every run of a test function or
    of the tests of a ``unittest.TestCase``; afterwards the generators go on as if nothing had been."""

    def decorator(impl: Any) -> Any:
        if isinstance(impl, types.FunctionType) and impl.__name__.startswith("test_"):

            @functools.wraps(impl)
            def run(*args: Any, **kwargs: Any) -> None:
                _set_up()
                try:
                    impl(*args, **kwargs)
                finally:
                    _tear_down()

            return run
        if isinstance(impl, type) and issubclass(impl, unittest.TestCase):
            before, after = impl.setUp, impl.tearDown

            def begin(self: Any) -> None:
                _set_up()
                before(self)

            def end(self: Any) -> None:
                try:
                    after(self)
                finally:
                    _tear_down()

            impl.setUp, impl.tearDown = begin, end  # type: ignore[method-assign]
            return impl
        raise ValueError(f"Can't apply fix_random to {impl}")

    return decorator
