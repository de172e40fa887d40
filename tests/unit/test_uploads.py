"""What a client's bytes do to a worker's array: through the C core's loop, in place or not, as by the executor."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rgpu.errors import ProtocolError
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, NoLoop
from rgpu.wire import codec, ops

BASE = np.arange(120, dtype=np.uint8)


def layouts():
    """Arrays of 120 bytes or fewer, and what is no array, by name."""
    whole = BASE.copy()
    fixed = BASE.copy()
    fixed.flags.writeable = False
    return {
        "plain": whole,
        "doubles": BASE.copy().view("f8").reshape(3, 5),
        "fortran": np.asfortranarray(BASE.copy().reshape(10, 12)),
        "big-endian": BASE.copy().view(">i4"),
        "moments": BASE.copy().view("M8[s]"),
        "slices": BASE.copy()[::2],
        "turned": BASE.copy()[::-1],
        "fixed": fixed,
        "view": whole[8:40],
        "nothing": np.empty((3, 0)),
        "one": np.array(5.0),
    }


class Worker:
    def __init__(self, compiled):
        self.replies = []
        self.executor = Executor(CpuBackend(), self.replies.append)
        if not compiled:
            self.executor._loop = NoLoop()
        self.handles = {}
        for handle, (name, array) in enumerate(layouts().items(), 10):
            self.executor.table.put(handle, array, array.nbytes)
            self.handles[name] = handle

    def upload(self, command, payload, placed):
        """As the connection does it; whether the session goes on."""
        body = codec.pack([1, [command]])
        place = self.executor.place([body])
        if placed and place is not None and len(place) >= len(payload):
            place[: len(payload)] = payload
            payload = place[: len(payload)]
        frames = [body, payload]
        try:
            answer = self.executor.answer(frames)
            if answer is None:
                self.executor.run(frames)
            else:
                assert answer == []
        except ProtocolError:
            return False
        return True

    def state(self):
        found = {name: self.executor.table.peek(handle) for name, handle in self.handles.items()}
        told = [codec.unpack(reply[0])[:6] for reply in self.replies]
        return {k: x.tobytes() if isinstance(x, np.ndarray) else str(x) for k, x in found.items()}, told


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([*layouts(), "unknown"]),
    st.sampled_from([0, 1, 8, 32, 119, 120, 121, 2**40, 2**64 - 1]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 1, 8, 112, 120, 121]),
    st.booleans(),
)
def test_an_upload_does_the_same_either_way(name, offset, frame, size, placed):
    payload = bytes(range(100, 100 + size))
    states = []
    for compiled in (True, False):
        worker = Worker(compiled)
        command = ops.Write.encode(worker.handles.get(name, 999), offset, frame)
        states.append((worker.upload(command, payload, placed), worker.state()))
    assert states[0] == states[1]


@pytest.mark.parametrize("standing", ["lent", "watched", "twin"])
def test_what_needs_more_than_the_bytes_is_the_executors(standing):
    worker = Worker(True)
    if isinstance(worker.executor._loop, NoLoop):
        pytest.skip("the C core is not built here")
    body = codec.pack([1, [ops.Write.encode(worker.handles["plain"], 0, 0)]])
    assert worker.executor._loop.place([body]) is not NotImplemented
    setattr(worker.executor._loop, standing, True)
    assert worker.executor._loop.place([body]) is NotImplemented
    assert worker.executor.answer([body, b"12"]) is None
    assert np.array_equal(worker.executor.table.peek(worker.handles["plain"]), BASE)


def test_a_place_outlives_its_array():
    """The rest of a frame may come after the session's end."""
    worker = Worker(True)
    handle = worker.handles["doubles"]
    place = worker.executor.place([codec.pack([1, [ops.Write.encode(handle, 8, 0)]])])
    worker.executor.table.free(handle)
    place[:] = bytes(112)
    assert len(place) == 112 and bytes(place) == bytes(112)
