"""Stand-ins for CuPy's internals that its test files name while pytest collects them.

They live in the harness only: CuPy's internals are no part of what rgpu offers. While tests are
collected, a name nobody has becomes a ``StandIn`` that can be called, subclassed and iterated;
once tests run, using one is NotImplementedError, so that nothing passes because of it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

from rgpu.alias import ROOTS, AliasFinder

collecting = True
_importing: set[str] = set()
given: set[str] = set()  # every name that had to be stood in for


class StandIn:
    """Something CuPy has inside. Harmless while tests are collected, refuses to work afterwards."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not collecting:
            raise AttributeError(f"{self._name}.{name} is not there (a stand-in of the test harness)")
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not collecting:
            raise NotImplementedError(f"{self._name} is an internal of CuPy")
        return StandIn(f"{self._name}()")

    def __repr__(self) -> str:
        return f"<{self._name}>"  # the same in every run: it stands in node ids

    def __mro_entries__(self, bases: tuple) -> tuple:
        return (object,)

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __sub__ = __mul__ = __add__

    def _compared(self, other: Any) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _compared


class StandInModule(types.ModuleType):
    """A module of CuPy that rgpu does not have. What the harness itself needs is in ``VALUES``."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(self.__name__, name)


def missing(module: str, name: str) -> Any:
    """A name that a module lacks: a value that ``cupy.testing`` needs, or a stand-in."""
    full = f"{module}.{name}"
    if full in VALUES:
        return VALUES[full]
    if full in OURS:
        return _ours(OURS[full])
    if full not in _importing and any(key.startswith(f"{full}.") for key in (*VALUES, *OURS)):
        _importing.add(full)  # the alias finder asks the parent for the name again
        try:
            return importlib.import_module(full)
        finally:
            _importing.discard(full)
    if not collecting:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    given.add(full)
    return StandIn(full)


def _ours(path: str) -> Any:
    """Something of rgpu's under an internal name of CuPy."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


#: internals that are rgpu's own things under another name
OURS = {
    "cupy._creation.from_data.array": "rgpu.functions.creation.array",
    "cupy._core.flags.Flags": "rgpu.functions.flags.Flags",
    "cupy._core._gufuncs._GUFunc": "rgpu.functions.gufunc.GeneralizedUFunc",
    "cupy._core._gufuncs._parse_gufunc_signature": "rgpu.functions.gufunc.parse",
    "cupy._indexing.generate.AxisConcatenator": "rgpu.functions.grids.AxisConcatenator",
    "cupyx.cusparse._cupy_spgemm_int64": "rgpu.cupyx.cusparse.spgemm",
    "cupy.fft._fft._default_fft_func": "internals.transform_of",
    "cupy.fft._fft._fft": "internals.ONE_AXIS",
    "cupy.fft._fft._fftn": "internals.SEVERAL_AXES",
    "cupyx.scipy.interpolate._rbfinterp._monomial_powers": "internals.exponents",
    "cupyx.scipy.interpolate._rbfinterp.polynomial_matrix": "internals.monomials",
    "cupyx.scipy.signal._iir_utils.apply_iir": "internals.recursion",
    "cupyx.scipy.ndimage._util._is_integer_output": "internals.gives_integers",
    "cupyx.scipy.signal._iir_utils.apply_iir_sos": "internals.sections",
    "cupy._core.elementwise_copy": "internals.elementwise_copy",
    "cupy._core._routines_math._scan_for_test": "internals.scan",
    "cupy.cuda.compiler._compile_module_with_cache": "internals.compiled",
    "cupy.cuda._compiler_cache.DiskKernelCacheBackend": "internals.KernelCache",
}
for _room, _names in {
    "array._modes": "REPLICA SUM PROD MAX MIN",
    "array._chunk": "_Chunk",
    "array._index_arith": "_extgcd _slice_intersection _index_for_subslice _normalize_index",
    "array._linalg": "make_2d_index_map",
    "_store": "TCPStore TCPStoreProxy ExceptionAwareProcess",
    "_nccl_comm": "NCCLBackend _mpi_available",
}.items():
    OURS |= {f"cupyx.distributed.{_room}.{name}": f"rgpu.cupyx.distributed.{_room}.{name}" for name in _names.split()}


def _identities(batch_shape: Any, n: int, dtype: Any) -> Any:
    """A stack of identity matrices, which tests of linalg compare with."""
    import cupy

    return cupy.broadcast_to(cupy.eye(n, dtype=dtype), (*batch_shape, n, n)).copy()


_RBF = "cupyx.scipy.interpolate._rbfinterp"
_SCALE_INVARIANT = {"linear", "thin_plate_spline", "cubic", "quintic"}

#: internals with a meaning that cupy.testing or the tests rely on
VALUES: dict[str, Any] = {
    "cupy.linalg._util.stacked_identity": _identities,
    # the cache of CuPy's compiler, which its tests set aside: the servers' goes by content
    "cupy.cuda.compiler._kernel_cache_backend": None,
    "cupy.cuda.compiler._empty_file_preprocess_cache": {},
    "cupy.cuda.compiler._get_bool_env_variable": lambda name, default: default,
    # test_raw.py asks for nvcc's version while it is collected; tests that start it are excluded
    "cupy.cuda.compiler._run_cc": lambda command, directory, name: "release 12.0",
    "cupyx.scipy.sparse.issparse": lambda x: False,
    "cupy.random._generator._random_states": {},
    "cupy.random.reset_states": lambda: None,
    "cupy.random.seed": lambda seed=None: None,
    "cupy_backends.cuda.stream.get_default_stream_ptr": lambda: 1,
    "cupy.cuda.runtime.is_hip": False,
    "cupy.cuda.runtime.streamLegacy": 1,
    "cupy.cuda.runtime.streamPerThread": 2,
    "cupyx.scipy._scipy_available": True,  # on this machine: the tests compare with it
    "cupyx.scipy.stats._distributions._normalize": lambda x, axis: x / x.sum(axis=axis, keepdims=True),
    # versions of NVIDIA's libraries whose errors some tests allow for: there is none here
    "cupy.cuda.cusolver._getVersion": lambda: (11, 0, 0),
    f"{_RBF}._SCALE_INVARIANT": _SCALE_INVARIANT,
    f"{_RBF}._AVAILABLE": _SCALE_INVARIANT | {"multiquadric", "inverse_multiquadric", "inverse_quadratic", "gaussian"},
    f"{_RBF}._NAME_TO_MIN_DEGREE": {"multiquadric": 0, "linear": 0, "thin_plate_spline": 1, "cubic": 1, "quintic": 2},
    "cupy._core._fusion_trace.TraceImpl": object,  # tests replace it by a mock of which they ask nothing
    "cupy._core._fusion_kernel.FusedKernel": type("FusedKernel", (), {"__module__": "cupy._core._fusion_kernel"}),
    "cupy.cuda.cub.available": False,
    "cupy.cuda.cutensor.available": False,
    "cupy.cuda.nccl.available": False,
}


class Finder:
    """First on ``sys.meta_path``: cupy.testing from the source distribution, everything else from
    rgpu through its own alias finder, and stand-ins for what is not there."""

    def __init__(self, sdist: Path, alias: Any) -> None:
        self.sdist, self.alias = sdist, alias

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ROOTS:
            return None
        if name == "cupy.testing":
            return importlib.machinery.PathFinder.find_spec(name, [str(self.sdist / "cupy")])
        if name.startswith("cupy.testing."):
            return importlib.machinery.PathFinder.find_spec(name, [str(self.sdist / "cupy" / "testing")])
        try:
            private = "._" in name and not f"{name}.".startswith("cupy._core.")  # rgpu's own are not CuPy's
            spec = None if private else self.alias.find_spec(name, path, target)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            if collecting:
                given.add(name)
            elif not any(key.startswith(f"{name}.") for key in (*VALUES, *OURS)):
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.loader = _Watching(spec.loader, name)
        return spec

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Util(spec.name) if spec.name == "cupy._util" else StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _Util(StandInModule):
    """``cupy._util``, where tests switch the version of CUDA's array interface."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module("rgpu._util"), name)
        except AttributeError:
            return super().__getattr__(name)

    @property
    def CUDA_ARRAY_INTERFACE_EXPORT_VERSION(self) -> int:  # noqa: N802 - CuPy's name
        return importlib.import_module("rgpu.cuda.addresses").interface_version

    @CUDA_ARRAY_INTERFACE_EXPORT_VERSION.setter
    def CUDA_ARRAY_INTERFACE_EXPORT_VERSION(self, version: int) -> None:  # noqa: N802
        importlib.import_module("rgpu.cuda.addresses").interface_version = version


class _Watching:
    """Loads a module of rgpu and makes it answer for names it lacks while tests are collected."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        module.__dict__.setdefault("__path__", [])  # every module may have internals below it
        own, alias = module.__dict__.get("__getattr__"), self.name

        def getattr_(name: str) -> Any:
            if own is not None:
                try:
                    return own(name)
                except AttributeError:
                    pass
            if name.startswith("__"):
                raise AttributeError(f"module {alias!r} has no attribute {name!r}")
            if name == "testing" and alias == "cupy":
                return importlib.import_module("cupy.testing")
            room = f"{AliasFinder().target(alias)}.{name}"
            if importlib.machinery.PathFinder.find_spec(room, module.__path__):
                return importlib.import_module(room)  # of rgpu's own, imported by rgpu
            return missing(alias, name)

        module.__getattr__ = getattr_  # type: ignore[method-assign]


def install(sdist: Path) -> None:
    """Bind cupy, cupyx and cupy_backends to rgpu, and cupy.testing to CuPy's own."""
    importlib.import_module("rgpu.client.pool")  # before the attribute rgpu._core becomes CuPy's
    sys.meta_path.insert(0, Finder(sdist, AliasFinder()))  # type: ignore[arg-type]
    # distances, and components of graphs, are tested only where these libraries of NVIDIA's are, which CuPy leaves them
    # to and rgpu does not need
    for name in ("cuvs", "pylibcugraph"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules.pop("cupy._core", None)
    cupy = importlib.import_module("cupy")
    for name in "cuda cuda.compiler cuda.cusolver random linalg fft lib polynomial exceptions".split():
        importlib.import_module(f"cupy.{name}")
    importlib.import_module("cupyx.cusparse")  # by this name first: tests ask it for CuPy's private functions
    cupy._core = importlib.import_module("cupy._core")
    cupy.cuda.get_nvcc_path = lambda: "nvcc"
    cupy.testing = importlib.import_module("cupy.testing")  # CuPy's own: rgpu's is among what is tested
