"""CUDA graphs: what a stream captured runs at each launch, and not before."""

import pickle

import numpy as np
import pytest


@pytest.fixture
def stream(cp):
    return cp.cuda.Stream(non_blocking=True)


def test_a_launch_runs_what_was_captured_in_the_same_memory(cp, stream):
    a, total = cp.arange(5.0), cp.zeros(5)
    with stream:
        before = cp.stats()["round_trips"]
        stream.begin_capture()
        assert stream.is_capturing()
        b = a * 2 + 1
        middle = b[1:3]
        total += b  # changes something: not before the launch
        graph = stream.end_capture()
        assert not stream.is_capturing() and cp.stats()["round_trips"] == before
    assert total.tolist() == [0] * 5
    for _ in range(3):
        graph.launch()
    assert total.tolist() == [3, 9, 15, 21, 27]
    a += 1
    graph.launch()
    assert b.tolist() == [3, 5, 7, 9, 11] and middle.tolist() == [5, 7]
    del a, b, middle  # the graph holds what it uses
    graph.launch()
    assert total.tolist() == [9, 19, 29, 39, 49]


def test_kernels_uploads_and_other_streams_take_part(cp, stream):
    other, fork, join = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.Event()
    bump = cp.RawKernel('extern "C" __global__ void bump(int* x) { x[threadIdx.x] += 1; }', "bump")
    x = cp.zeros(4, "i4")
    with stream:
        stream.begin_capture()
        bump((1,), (4,), (x,))
        fork.record(stream)
        other.wait_event(fork)
        with other:
            y = cp.asarray(np.arange(4, dtype="i4")) + x
            join.record(other)
        stream.wait_event(join)
        graph = stream.end_capture()
    assert x.tolist() == [0] * 4
    graph.upload()
    graph.launch()
    graph.launch()
    assert x.tolist() == [2] * 4 and y.tolist() == [2, 3, 4, 5]
    assert "cupy_add" in graph.debug_dot_str()


def test_functions_of_the_host_run_at_each_launch(cp, stream):
    seen = []
    with stream:
        stream.begin_capture()
        stream.launch_host_func(seen.append, 1)
        graph = stream.end_capture()
        assert seen == []
        graph.launch()
        graph.launch()
        stream.synchronize()
    assert seen == [1, 1]


def test_nobody_waits_for_a_stream_that_captures(cp, stream):
    a = cp.ones(3)
    error = cp.cuda.runtime.CUDARuntimeError
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="is capturing"):
            a.get()
        with pytest.raises(error, match="CaptureUnsupported"):
            stream.synchronize()
        with pytest.raises(error, match="CaptureInvalidated"):
            stream.end_capture()
        assert a.tolist() == [1, 1, 1]
        with pytest.raises(error, match="IllegalState"):
            stream.end_capture()


def test_a_stream_that_ends_while_it_captures_ends_its_capture(cp, stream):
    gone = cp.cuda.Stream(non_blocking=True)
    gone.begin_capture()
    del gone
    a = cp.ones(3)
    with stream:
        stream.begin_capture()
        b = a + 1
        graph = stream.end_capture()
        graph.launch()
    assert b.tolist() == [2, 2, 2]


def test_a_stream_does_not_travel(stream):
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(stream)


def test_waiting_can_be_forbidden(cp):
    from rgpu import cupyx

    a = cp.array([2, 3])
    with cupyx.allow_synchronize(False):
        b = a + 1
        with pytest.raises(cupyx.DeviceSynchronized):
            b.get()
        with cupyx.allow_synchronize(True):
            assert b.tolist() == [3, 4]
    assert b.tolist() == [3, 4]


def test_two_streams_capture_at_once(cp, stream):
    other, a = cp.cuda.Stream(non_blocking=True), cp.arange(3)
    stream.begin_capture()
    other.begin_capture()
    with stream:
        b = a + 1
    with other:
        c = a * 5
    graphs = [stream.end_capture(), other.end_capture()]
    a += 1
    graphs[0].launch()
    assert b.tolist() == [2, 3, 4]
    graphs[1].launch()
    assert c.tolist() == [5, 10, 15]
