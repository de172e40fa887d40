"""20,000 seeded cases against every parser of this side: commands, control messages, session headers, frames of links.

A case is something valid with one or a few places broken. Whatever it is, the parser answers or raises
ProtocolError (or ends the connection), soon, and takes no memory for it. ``RGPU_FUZZ_CASES`` says how many (10,000,000
for a night); one case again: ``python -m tests.hostile.test_fuzz commands 1234``.
"""

import contextlib
import ctypes
import gc
import os
import random
import socket
import sys
import time

import numpy as np
import pytest

from rgpu.errors import ProtocolError, RgpuError
from rgpu.link.framing import PureReader, Reader
from rgpu.link.tcp import SocketPipe
from rgpu.server.backend_cpu import CpuBackend
from rgpu.server.executor import Executor, Goodbye
from rgpu.session.session import Session
from rgpu.wire import codec, control, ops, values
from rgpu.wire.functions import BY_NAME
from rgpu.wire.peer import Meeting, Peer

CASES = int(os.environ.get("RGPU_FUZZ_CASES", "20000"))
SHARES = {"commands": 0.5, "control": 0.3, "headers": 0.1, "frames": 0.1}
LIMIT = 1 << 20
EDGES = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**32, 2**62, 2**63 - 1, 2**64 - 1, -(2**63), True, None, 0.5, float("nan"))
TEXTS = ("", "<f8", "|O", "f8,O", "os.system", "__class__", "../../etc/passwd", "\0", "x" * 300, b"", b"\xff" * 9)


def breakage(random_, value, depth=0):
    """The value with one place of it replaced, removed, doubled or nested."""
    if isinstance(value, (list, tuple)) and value and (depth == 0 or random_.random() < 0.8):
        value = list(value)
        where = random_.randrange(len(value))
        how = random_.randrange(8)
        if how == 0:
            del value[where]
        elif how == 1:
            value.insert(where, value[where])
        elif how == 2:
            value[where] = [value[where]]
        else:
            value[where] = breakage(random_, value[where], depth + 1)
        return value
    if isinstance(value, int) and not isinstance(value, bool) and random_.random() < 0.4:
        return value + random_.choice((-1, 1, 8, -8, 2**32))
    return random_.choice((*EDGES, *TEXTS, [], {}, [[]], {"a": 1}, [values.HANDLE, 3]))


def damaged(random_, data):
    """Bytes with a few flipped, cut out, repeated or appended."""
    data = bytearray(data)
    for _ in range(random_.choice((1, 1, 2, 5))):
        where, how = random_.randrange(len(data) + 1), random_.randrange(4)
        if how == 0 and where < len(data):
            data[where] ^= 1 << random_.randrange(8)
        elif how == 1:
            del data[where : where + random_.randrange(1, 9)]
        elif how == 2:
            data[where:where] = random_.randbytes(random_.randrange(1, 9))
        elif where < len(data):
            data[where] = random_.choice((0, 0x7F, 0x80, 0xC1, 0xDC, 0xDD, 0xDF, 0xFF))
    return bytes(data)


def _call(name, out, *args, **kw):
    encoded = {key: values.encode(value, lambda _: None) for key, value in kw.items()}
    return ops.Call.encode(BY_NAME[name].id, out, list(args), encoded)


def commands():
    """A valid batch for the bench below, every command at least once."""
    f8, sqrt, add = "<f8", BY_NAME["sqrt"].id, BY_NAME["add"].id
    return [
        ops.Empty.encode(20, f8, [2, 3], None),
        ops.Put.encode(21, "<i4", [2], b"12345678"),
        ops.View.encode(22, 1, f8, [2, 2], [32, 8], 8),
        ops.Unary.encode(sqrt, 23, 1),
        ops.Binary.encode(add, 24, 1, 1),
        _call("sum", [25], [values.HANDLE, 1]),
        _call("sort", [26], [values.HANDLE, 1], axis=0),
        _call("concatenate", [28], [values.LIST, [values.HANDLE, 1], [values.HANDLE, 1]]),
        _call("zeros", [27], [values.TUPLE, 3, 2]),
        ops.Write.encode(1, 0, 0),
        ops.Read.encode(9, 1, 0, f8, [3, 4]),
        ops.Sync.encode(10),
        ops.Free.encode([2, 3]),
    ]


class Bench:
    """An executor with three arrays; made anew when a case has ended its session or used it up."""

    def __init__(self):
        self.answers = []
        self.executor = Executor(CpuBackend(memory_limit=LIMIT), self.answers.append)
        self.send(
            [
                ops.Put.encode(1, "<f8", [3, 4], np.arange(12.0).tobytes()),
                ops.Put.encode(2, "<i4", [5], np.arange(5, dtype="i4").tobytes()),
                ops.Put.encode(3, "|b1", [], b"\1"),
            ]
        )

    def send(self, batch, payload=(b"\0" * 96,)):
        self.executor.run([codec.pack([1, batch]), *payload])

    def free(self):
        self.send([ops.Free.encode(list(range(20, 40)))])

    def check(self):
        """The control client: a right answer from the same executor."""
        self.answers.clear()
        self.send([ops.Free.encode([1, 2, 3, 50]), ops.Put.encode(50, "<f8", [2], np.array([3.0, 4.0]).tobytes())])
        self.send([ops.Read.encode(77, 50, 0, "<f8", [2])])
        assert bytes(self.answers[-1][1]) == np.array([3.0, 4.0]).tobytes()


def fuzz_commands(random_, state):
    bench = state.setdefault("bench", None) or Bench()
    state["bench"] = None
    chosen = random_.sample(commands(), random_.choice((1, 2, 3)))
    with np.errstate(all="ignore"):
        try:
            if random_.random() < 0.25:
                bench.executor.run([damaged(random_, codec.pack([1, chosen])), b"\0" * 96])
            else:
                chosen[random_.randrange(len(chosen))] = breakage(random_, random_.choice(chosen))
                bench.send(chosen)
            assert bench.executor.table.used <= LIMIT
            if random_.random() < 0.05:
                bench.check()
            elif 1 in bench.executor.table.entries and len(bench.executor.table.entries) < 200:
                bench.free()
                state["bench"] = bench  # as good as new
        except (ProtocolError, Goodbye, OverflowError) as error:
            # An integer that the packer here does not take has not left this side.
            assert not isinstance(error, OverflowError) or "integer" in str(error).lower(), error
    for frames in bench.answers:
        ops.Reply.decode(codec.unpack(frames[0]))
    bench.answers.clear()


def _example(kind):
    name = kind.name
    if name.startswith("text"):
        return "text"
    if name.startswith("bytes"):
        return b"0123456789abcdef"[: getattr(kind, "limit", 16)]
    if name.startswith("["):
        return [_example(kind.inner)]
    return {"number": 1.5, "bool": True, "plain": {"a": [1, "b"]}}.get(name, 1)


def fuzz_control(random_, state):
    family = random_.choice((control.Control, Peer, Meeting, ops.Reply))
    declared = random_.choice(list(family.registry.values()))
    message = [declared.tag, *(_example(kind) for _, kind in declared.fields)]
    with contextlib.suppress(ProtocolError, OverflowError):
        if random_.random() < 0.5:
            family.decode(codec.unpack(damaged(random_, codec.pack(message))))
        else:
            family.decode(codec.unpack(codec.pack(breakage(random_, message))))


def fuzz_headers(random_, state):
    if "ends" not in state:
        state["ends"] = Session(bytes(16), 7), Session(bytes(16), 7)
    here, there = state["ends"]
    message = there.send([b"payload"], hold=False) if there.can_send(7) else None
    if message is None:
        del state["ends"]
        return
    header = damaged(random_, message[0])
    before = here.counters["delivered"]
    payload = here.receive([header, b"payload"])
    assert here.counters["delivered"] - before == (payload is not None)
    if payload is not None:
        here.mark_done(1)


class _Bytes:
    """A pipe that brings what a stranger sent, in pieces."""

    def __init__(self, random_, data):
        self.random, self.data = random_, data

    def read_into(self, place):
        if not self.data:
            raise ConnectionError("the end")
        count = min(len(place), self.random.choice((1, 3, 64, 4096)), len(self.data))
        place[:count], self.data = self.data[:count], self.data[count:]
        return count

    def busy(self):
        return False


def fuzz_frames(random_, state):
    if random_.random() < 0.5:
        data = random_.randbytes(random_.randrange(1, 200))
    else:
        numbers = [random_.choice((0, 1, 2, 3, 8, 64, 65, 2**16, 2**24, 2**31, 2**32 - 1)) for _ in range(6)]
        data = b"".join(number.to_bytes(4, "little") for number in numbers) + random_.randbytes(64)
    slowly = _heard(PureReader(_Bytes(random_, data)))
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        assert _heard(Reader(SocketPipe(here))) == slowly


def _heard(reader):
    """The messages until the end, and what it was."""
    heard = []
    try:
        for _ in range(300):
            if (frames := reader.read(None)) is not None:
                heard.append([bytes(frame) for frame in frames])
    except (ConnectionError, RgpuError) as error:
        return heard, type(error)
    return heard, None


FUZZERS = {"commands": fuzz_commands, "control": fuzz_control, "headers": fuzz_headers, "frames": fuzz_frames}


def run(name, seeds, state=None):
    state, slowest = {} if state is None else state, 0.0
    for seed in seeds:
        began = time.process_time()
        try:
            FUZZERS[name](random.Random(f"{name} {seed}"), state)
        except BaseException as error:
            raise AssertionError(
                f"python -m tests.hostile.test_fuzz {name} {seed}  # {type(error).__name__}: {error}"
            ) from error
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 5.0, f"{slowest:.1f} s for one case"


def resident():
    """Bytes in memory without those that only wait to be used again."""
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(work, parts=10):
    """Bytes that ``work(part)`` leaves behind: the first part brings what there is once, and parts in which a module
    was imported are not counted. Functions import what they need (SciPy's 600 modules are 60 MiB), each module once."""
    grown = counted = 0
    for part in range(parts):
        before, modules = resident(), len(sys.modules)
        work(part)
        if part and len(sys.modules) == modules:
            grown, counted = grown + resident() - before, counted + 1
    assert counted >= parts // 2
    return grown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(300 + CASES // 50)
@pytest.mark.parametrize("name", FUZZERS)
def test_cases(name):
    size = int(CASES * SHARES[name]) // 10
    assert growth(lambda part: run(name, range(part * size, (part + 1) * size))) < 16 << 20
    Bench().check()


def test_what_is_kept_is_seen_as_growth():
    kept = []
    assert growth(lambda part: kept.append(b"\1" * (4 << 20))) > 16 << 20
    assert growth(lambda part: b"\1" * (4 << 20)) < 16 << 20


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        run(sys.argv[1], [int(argument)])
