"""Objects of SciPy's classes on a worker: nothing but what is declared can be reached."""

import numpy as np
import pytest

from rgpu.server import objects
from rgpu.wire import classes

FUNCTIONS = objects.overrides("scipy")


@pytest.fixture
def spline():
    interpolate = pytest.importorskip("scipy.interpolate")
    return interpolate.CubicSpline(np.arange(4.0), np.arange(4.0) ** 2)


def test_an_object_is_known_by_its_declared_class(spline):
    assert objects.kind(spline) == "interpolate.CubicSpline"
    assert objects.kind(type(spline).__mro__[2](spline.c, spline.x)) == "interpolate.PPoly"
    for stranger in (object(), np.ones(2), "text", np.random.RandomState(0)):
        with pytest.raises(TypeError, match="not a class"):
            objects.kind(stranger)


@pytest.mark.parametrize("name", ["__class__", "__init__", "__dict__", "__reduce__", "_evaluate", "extend_", ""])
@pytest.mark.parametrize("function", ["call", "make", "get"])
def test_what_is_not_declared_is_refused(spline, function, name):
    with pytest.raises(AttributeError, match="not declared"):
        FUNCTIONS[f"cupyx.object.{function}"](spline, name)


def test_class_methods_are_declared_too():
    with pytest.raises(AttributeError, match="not declared"):
        FUNCTIONS["cupyx.object.construct"]("interpolate.PPoly", "__new__")
    with pytest.raises(AttributeError, match="not declared"):
        FUNCTIONS["cupyx.object.construct"]("os.path", "join", "a")
    assert FUNCTIONS["cupyx.object.construct"]("interpolate.BSpline", "basis_element", [0, 1, 2]).k == 1


def test_only_declared_attributes_are_assigned(spline):
    with pytest.raises(AttributeError, match="cannot be assigned"):
        FUNCTIONS["cupyx.object.set"](spline, "derivative", 1)


def test_no_declared_name_reaches_into_python():
    for cls in classes.CLASSES.values():
        names = [*cls.methods, *cls.makers, *cls.attributes, *cls.settable, *cls.constructors, *cls.functions]
        assert all(not name.startswith("_") or name == "__call__" for name in names), cls.name
        assert all(base in classes.CLASSES for base in cls.bases)
