"""The queue of commands, in C and in Python: what enters leaves once, in order, with the line it came from."""

import sys

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
    body, places = made.take(4, True), made.places(1)
    assert codec.unpack(body) == [1, commands[:4]] and (made.batch, made.left) == (1, 4)
    assert len(places) == 4
    assert [places[i] for i in range(4)] == [here(), None, here(), None]
    with pytest.raises(IndexError):
        places[4]
    assert made.unsent == 3
    assert codec.unpack(made.take(4, True)) == [2, commands[4:]]
    assert made.unsent == 0 and made.take(4, True) == b"" and (made.batch, made.left) == (2, 7)


def test_the_lines_of_messages_are_remembered_for_a_while(made):
    """Also of those that leave past the queue; one that was not known yet may be told later."""
    made.add((ops.Unary.tag, 3, 2, 1), None)
    made.take(4, True)
    made.places(1)[-1] = here()
    assert made.places(1)[0] == here()
    with pytest.raises(IndexError):
        made.places(1)[1] = here()
    assert made.leave([here(), None]) == made.batch == 2 and list(made.places(2)) == [here(), None] and made.left == 3
    assert made.places(0) is None and made.places(3) is None
    for n in range(3, 3 + queue.ORIGINS):
        assert made.places(1 if n < 1 + queue.ORIGINS else n - queue.ORIGINS + 1) is not None
        made.leave([])
    assert made.places(2) is None and made.batch == 2 + queue.ORIGINS


@pytest.mark.parametrize("replay", [False, True])
def test_a_command_that_leaves_behind_the_others(made, replay):
    """It is no part of what repeats, and has its line whatever leaves before it."""
    made.replay = replay
    write = [ops.Write.tag, 77, 0, 0]
    for batch, count in enumerate((0, 1, 40, 40, 40, 40, 40)):
        commands = [[ops.Unary.tag, 3, 1000 * batch + n, 5] for n in range(count)]
        for command in commands:
            made.add(tuple(command), None)
        where = here() if batch % 2 else None
        body = made.take(limits.BATCH - 1, True, codec.pack(write), *where or ())
        number, found = codec.unpack(body)
        places = made.places(number)
        assert number == batch + 1 == made.batch and found[-1] == write and made.unsent == 0
        assert len(places) == count + 1 and places[count] == where
        if not replay:
            assert found[:-1] == commands
    assert replay == bool(made.replayed) or isinstance(made, queue.PureQueue)


def test_freed_handles_come_after_the_commands_that_used_them(made):
    made.free(9)
    made.add((ops.Unary.tag, 3, 2, 1), None)
    made.free(2**64 - 1)
    body = made.take(10, True)
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
    body = made.take(limits.BATCH, True)
    assert len(codec.unpack(body)[1]) == len(made.places(1)) == limits.BATCH
    assert made.unsent == limits.BATCH // 2


def test_every_queue_has_its_number():
    assert len({made().number for made in QUEUES.values() for _ in range(3)}) == 6


def test_finalizers_between_any_two_lines_lose_nothing(made):
    """They queue commands and free handles, also where the queue is just being emptied."""
    queued, freed = [], []

    def finalizer(frame, event, _):
        if event == "line" and len(queued) < 200:
            queued.append(1000 + len(queued))
            made.add((ops.Unary.tag, 3, queued[-1], 1), None)
            freed.append(2000 + len(freed))
            made.freed.append(freed[-1]) if hasattr(made, "freed") else made.free(freed[-1])
            if len(freed) % 3 == 0:
                made.gather()
        return finalizer

    commands = []
    made.free(1999)
    for batch in range(60):
        sys.settrace(finalizer)
        try:
            made.gather()
            body = made.take(3, batch % 2 == 0)
        finally:
            sys.settrace(None)
        if body:
            number, left = codec.unpack(body)
            assert len(made.places(number)) == len(left)
            commands += left
    made.gather()
    if body := made.take(4096, True):
        commands += codec.unpack(body)[1]
    assert [c[2] for c in commands if c[0] == ops.Unary.tag] == queued
    assert sorted(h for c in commands if c[0] == ops.Free.tag for h in c[1]) == [1999, *freed]
