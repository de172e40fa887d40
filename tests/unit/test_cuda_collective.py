"""NCCL's communicators of CUDA workers, with a stand-in for CuPy: no device is needed to see who ends what."""

import importlib.util
import sys
import threading
import types
from types import SimpleNamespace

import pytest


@pytest.fixture
def communicator(monkeypatch):
    """One rank, as it is once it has met the others, and what its NCCL was told."""
    cupy, cuda, nccl = (types.ModuleType(name) for name in ("cupy", "cupy.cuda", "cupy.cuda.nccl"))
    cupy.cuda, cuda.nccl = cuda, nccl
    for module in (cupy, cuda, nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.find_spec("rgpu.server.cupy_collective")
    found = importlib.util.module_from_spec(spec)  # known to nobody else
    spec.loader.exec_module(found)
    comm, told = object.__new__(found.Communicator), []
    comm.error, comm._pairs, comm._dialled, comm._left = "", {}, None, threading.Lock()
    comm._visitor = SimpleNamespace(close=lambda: None, abort=lambda why: why)
    comm._nccl = SimpleNamespace(abort=lambda: told.append("abort"), destroy=lambda: told.append("destroy"))
    return comm, told


def test_a_rank_that_hears_of_another_ones_end_ends_what_its_device_waits_in(communicator):
    comm, told = communicator
    comm._told("the worker of rank 1 is gone")
    assert told == ["abort"] and comm.ended
    comm.abort("so am I")
    comm.close()
    assert told == ["abort"] and comm.error == "the worker of rank 1 is gone"


def test_an_end_without_an_error_waits_for_what_was_issued(communicator):
    comm, told = communicator
    comm.close()
    assert told == ["destroy"] and comm.ended
