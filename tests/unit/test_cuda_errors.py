"""CUDA's errors as CuPy words them, rebuilt from what a worker reports."""

import pickle

import pytest

from rgpu.client import failures
from rgpu.cuda import errors
from rgpu.server.table import plain_error


@pytest.mark.parametrize(
    "status, text",
    [
        (1, "cudaErrorInvalidValue: invalid argument"),
        (2, "cudaErrorMemoryAllocation: out of memory"),
        (101, "cudaErrorInvalidDevice: invalid device ordinal"),
        (700, "cudaErrorIllegalAddress: an illegal memory access was encountered"),
    ],
)
def test_runtime_errors(status, text):
    error = errors.CUDARuntimeError(status)
    assert str(error) == text and error.status == status and isinstance(error, RuntimeError)
    assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.parametrize(
    "status, text",
    [
        (1, "CUDA_ERROR_INVALID_VALUE: invalid argument"),
        (2, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        (101, "CUDA_ERROR_INVALID_DEVICE: invalid device ordinal"),
        (500, "CUDA_ERROR_NOT_FOUND: named symbol not found"),
        (719, "CUDA_ERROR_LAUNCH_FAILURE: unspecified launch failure"),
    ],
)
def test_driver_errors(status, text):
    assert str(errors.CUDADriverError(status)) == text


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((1024, -1), "Out of memory allocating 1,024 bytes"),
        ((1024, 0), "Out of memory allocating 1,024 bytes (allocated so far: 0 bytes)."),
        (
            (1, 2000, 3000),
            "Out of memory allocating 1 bytes (allocated so far: 2,000 bytes, limit set to: 3,000 bytes).",
        ),
    ],
)
def test_out_of_memory(arguments, text):
    error = errors.OutOfMemoryError(*arguments)
    assert str(error) == text == str(pickle.loads(pickle.dumps(error))) and isinstance(error, MemoryError)


def test_a_workers_error_comes_back_as_the_same(monkeypatch):
    for error in (errors.CUDARuntimeError(400), errors.CUDADriverError(1)):
        kind, arguments = plain_error(error)
        again = failures.KINDS[kind](*arguments)
        assert type(again) is type(error) and str(again) == str(error)
