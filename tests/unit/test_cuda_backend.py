"""The cupy backend against an installed CuPy as far as that goes without a device, and against a stand-in."""

import inspect

import numpy as np
import pytest

from rgpu import surface
from rgpu.server import cupy_graphs
from rgpu.server.cpu import device as cpu_device
from rgpu.wire.functions import TABLE
from tests.support.cuda_stand_in import installed
from tests.support.repeating import Session

#: what CuPy has no way to do: read the state of its random generators, make a graph without capturing it
CPU_ONLY = {"graph.make", "random.restore", "random.state"}


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from rgpu.server import backend_cupy

    if not hasattr(backend_cupy.cupy, "ndarray"):
        pytest.skip("cupy is a stand-in here")
    return backend_cupy


def test_every_declared_function_is_there(backend):
    unopened = object.__new__(backend.CupyBackend)
    missing = {function.name for function in TABLE if not callable(unopened.resolve(function.name))}
    assert missing == CPU_ONLY
    late = {function.name for function in TABLE if function.name.startswith("cupyx.")}
    wanted = late - backend.OVERRIDES.keys()
    assert not {name for name in wanted if surface.kind(*name.rsplit(".", 1)) is None}


def test_both_backends_answer_the_same_questions(backend):
    from rgpu.server import cupy_device

    assert cupy_device.FUNCTIONS.keys() == cpu_device.FUNCTIONS.keys() - CPU_ONLY


def test_every_override_is_declared(backend):
    names = {function.name for function in TABLE}
    assert backend.OVERRIDES.keys() <= names


def test_what_the_backend_uses_of_cupy_exists(backend):
    cuda = backend.cupy.cuda
    for owner, names in {
        cuda.runtime: "memGetInfo getDeviceProperties deviceGetAttribute driverGetVersion runtimeGetVersion "
        "ipcGetMemHandle ipcOpenMemHandle ipcCloseMemHandle ipcGetEventHandle ipcOpenEventHandle "
        "memcpyAsync memcpyDefault eventCreateWithFlags eventRecord eventDestroy streamWaitEvent "
        "streamCaptureModeThreadLocal CUDARuntimeError",
        cuda.MemoryPool: "malloc set_limit used_bytes total_bytes n_free_blocks free_all_blocks",
        cuda.PinnedMemoryPool: "free_all_blocks",
        cuda.MemoryPointer: "copy_from_host_async copy_from_device_async memset_async ptr mem",
        cuda.UnownedMemory: "ptr size",
        cuda.Stream: "use synchronize wait_event done null begin_capture end_capture",
        cuda.graph.Graph: "launch",
        cuda.Event: "record synchronize done",
        cuda.Device: "use synchronize",
        backend.cupy.ndarray: "get data flags strides real copy byteswap",
        backend.cupy.ufunc: "reduce accumulate reduceat outer at",
        cuda: "alloc alloc_pinned_memory get_current_stream get_elapsed_time set_allocator get_allocator",
    }.items():
        missing = [name for name in names.split() if not hasattr(owner, name)]
        assert not missing, (owner, missing)
    assert issubclass(cuda.memory.OutOfMemoryError, MemoryError)
    assert cuda.memory.OutOfMemoryError(1, 2, 3).__reduce__()[1] == (1, 2, 3)


def test_errors_travel_with_arguments_that_make_them_again(backend):
    unopened = object.__new__(backend.CupyBackend)
    memory = unopened.explain(backend.cupy.cuda.memory.OutOfMemoryError(1, 2, 3))
    assert (type(memory).__name__, memory.args) == ("OutOfMemoryError", (1, 2, 3))
    compiler = backend.cupy.cuda.compiler.CompileException("no", "source", "name", ("-O3",))
    assert unopened.explain(compiler).args == ("no", "source", "name")
    assert type(unopened.explain(compiler)).__name__ == "CompileException"
    plain = ValueError("x")
    assert unopened.explain(plain) is plain


def test_out_of_memory_tells_what_cupy_was_asked_for():
    with installed() as module:
        session = Session(module, card=1 << 20)
        cuda = module.cupy.cuda
        with pytest.raises(cuda.memory.OutOfMemoryError) as caught:
            session.backend.empty((1 << 20,), np.dtype(float), None)
        poison = session.executor.describe_error(caught.value, (0, 0))
    assert (poison.kind, list(poison.arguments)) == ("OutOfMemoryError", [8 << 20, 0, 0])
    assert "in empty" in poison.text


def test_the_reach_of_a_layout():
    assert cupy_graphs.reach((3, 4), 4, (16, 4)) == (0, 48)
    assert cupy_graphs.reach((3,), 8, (-16,)) == (-32, 8)


def test_no_abstract_method_is_left(backend):
    assert not inspect.isabstract(backend.CupyBackend)


def test_options_of_kernels_name_no_file_and_run_no_program(backend):
    from rgpu.server import cupy_kernels

    assert cupy_kernels.options(["-DN=3", "-I/client/include", "--std=c++17"]) == ("-DN=3", "--std=c++17")
    for wrong in ("--pre-include=/etc/passwd", "-include", "-Xcompiler=-fplugin=x", "--dlto", "@file"):
        with pytest.raises(ValueError, match="not passed on"):
            cupy_kernels.options([wrong])
    with pytest.raises(NotImplementedError, match="nvcc"):
        cupy_kernels.FUNCTIONS["kernel.module"](None, "", (), (), "nvcc", False, False)
