"""The manifest of CuPy's names, and that nothing missing can pass for something that is there."""

import inspect
import math
import sys
import types

import numpy
import pytest

from rgpu import surface

pytestmark = pytest.mark.timeout(30)


def test_the_manifest_has_cupys_namespaces():
    assert {"cupy", "cupy.linalg", "cupy.cuda.runtime", "cupyx.scipy.signal"} <= set(surface.namespaces())
    assert {"add", "concatenate", "ndarray", "float32"} <= set(surface.names("cupy"))
    assert surface.names("cupy.nothing") == []
    assert surface.cupy_version().startswith("14.")


def test_kinds():
    expected = {
        "add": "ufunc",
        "sum": "function",
        "ndarray": "class",
        "float32": "dtype",
        "pi": "constant",
        "linalg": "module",
        "nothing": None,
    }
    assert {name: surface.kind("cupy", name) for name in expected} == expected


def test_every_signature_can_be_read():
    for namespace in surface.namespaces():
        for name in surface.names(namespace):
            sig = surface.signature(namespace, name)
            assert sig is None or isinstance(sig, inspect.Signature)


@pytest.mark.parametrize(
    ("namespace", "name", "text"),
    [
        ("cupy", "sum", "(a, axis=None, dtype=None, out=None, keepdims=False)"),
        ("cupy", "add", "(x1, x2, /, out=None, **kwargs)"),
        ("cupy.linalg", "cross", "(x1, x2, /, *, axis=-1)"),
        ("cupy.random", "beta", "(a, b, size=None, dtype=<class 'float'>)"),
        ("cupy.cuda.runtime", "memcpy", "(dst, src, size, kind)"),
    ],
)
def test_signatures(namespace, name, text):
    assert str(surface.signature(namespace, name)) == text


def test_members_of_a_class():
    members = surface.members("cupy.ndarray")
    assert members["shape"] == ["property"]
    assert str(surface.parse_signature(members["get"][1])).startswith("(self, stream=None")


@pytest.mark.parametrize("use", [lambda f: f(), lambda f: f(1, out=2), lambda f: f[0]])
def test_a_missing_function_refuses_by_name(use):
    missing = surface.unimplemented("cupy", "einsum")
    with pytest.raises(NotImplementedError, match=r"cupy\.einsum .*not in rgpu yet.*coverage"):
        use(missing)
    assert missing.__name__ == "einsum" and "not implemented" in repr(missing)
    assert surface.is_unimplemented(missing)


def test_a_missing_class_is_a_class():
    missing = surface.unimplemented("cupy", "RawKernel")
    assert not isinstance(3, missing)
    with pytest.raises(NotImplementedError, match=r"cupy\.RawKernel"):
        missing("code", "name")

    class Own(missing):
        def __new__(cls):
            return object.__new__(cls)

    assert surface.is_unimplemented(missing) and not surface.is_unimplemented(Own)
    assert isinstance(Own(), missing)


def test_a_missing_exception_can_be_caught():
    missing = surface.unimplemented("cupy.cuda.nccl", "NcclError")
    with pytest.raises(ZeroDivisionError):
        try:
            raise ZeroDivisionError
        except missing:
            pytest.fail("caught the wrong exception")


def test_constants_and_dtypes_are_facts():
    assert surface.resolve("cupy", "pi") == math.pi
    assert math.isnan(surface.resolve("cupy", "nan"))
    assert surface.resolve("cupy", "float32") is numpy.float32
    assert surface.resolve("cupy", "AxisError") is numpy.exceptions.AxisError
    assert surface.resolve("cupy.cuda.runtime", "memcpyHostToDevice") == 1


def test_names_that_cupy_lacks_too():
    with pytest.raises(AttributeError, match="'cupy' has no attribute 'nothing'"):
        surface.resolve("cupy", "nothing")


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("rgpu.linalg")
    module.solve = lambda a, b: None
    module.__getattr__, module.__dir__ = surface.face("rgpu.linalg")
    monkeypatch.setitem(sys.modules, "rgpu.linalg", module)
    return module


def test_the_face_of_a_module(module):
    assert not surface.is_unimplemented(module.solve)
    assert surface.is_unimplemented(module.svd) and module.svd is module.svd
    assert {"solve", "svd", "norm"} <= set(dir(module))
    assert not hasattr(module, "nothing") and not hasattr(module, "__path__")


def test_missing_counts_only_what_is_refused(module):
    assert surface.lookup("cupy.linalg", "solve") is module.solve
    assert "solve" not in surface.missing("cupy.linalg") and "svd" in surface.missing("cupy.linalg")


@pytest.mark.parametrize(
    ("namespace", "package"),
    [
        ("cupy", "rgpu"),
        ("cupy.linalg", "rgpu.linalg"),
        ("cupyx", "rgpu.cupyx"),
        ("cupyx.jit", "rgpu.cupyx.jit"),
        ("cupy_backends.cuda", "rgpu.cupy_backends.cuda"),
    ],
)
def test_namespaces_and_packages(namespace, package):
    assert surface.package_of(namespace) == package
    assert surface.namespace_of(package) == namespace
