"""The queue of commands, in C and in Python: what enters leaves once, in order, with the line it came from."""

import pytest

from rgpu.client import queue
from rgpu.errors import ForkError
from rgpu.wire import codec, limits, ops

QUEUES = {"pure": queue.PureQueue, "used": queue.Queue}  # the same where the C core is not


@pytest.fixture(params=QUEUES)
def made(request):
    return QUEUES[request.param]()


def here():
    return here.__code__, 2


def test_commands_leave_in_order_and_once(made):
    commands = [[ops.Unary.tag, 3, n, 1] for n in range(1, 8)]
    for command in commands:
        made.add(tuple(command), here() if command[2] % 2 else None)
    assert made.unsent == 7
    body, places = made.take(5, 4, True)
    assert codec.unpack(body) == [5, commands[:4]]
    assert len(places) == 4
    assert [places[i] for i in range(4)] == [here(), None, here(), None]
    with pytest.raises(IndexError):
        places[4]
    assert made.unsent == 3
    assert codec.unpack(made.take(6, 4, True)[0]) == [6, commands[4:]]
    assert made.unsent == 0 and codec.unpack(made.take(7, 4, True)[0]) == [7, []]


def test_freed_handles_come_after_the_commands_that_used_them(made):
    made.free(9)
    made.add((ops.Unary.tag, 3, 2, 1), None)
    made.free(2**64 - 1)
    body, _ = made.take(1, 10, True)
    assert codec.unpack(body)[1] == [[ops.Free.tag, [9]], [ops.Unary.tag, 3, 2, 1], [ops.Free.tag, [2**64 - 1]]]
    for command in codec.unpack(body)[1]:
        ops.Command.decode(command)


def test_free_never_raises(made):
    made.refuse()
    made.free(3)
    with pytest.raises(ForkError, match="spawn"):
        made.add((ops.Bye.tag,), None)


def test_large_batches(made):
    for n in range(3 * limits.BATCH // 2):
        made.add((ops.Free.tag, [n + 1]), None)
    body, places = made.take(1, limits.BATCH, True)
    assert len(codec.unpack(body)[1]) == len(places) == limits.BATCH
    assert made.unsent == limits.BATCH // 2


def test_every_queue_has_its_number():
    assert len({made().number for made in QUEUES.values() for _ in range(3)}) == 6
