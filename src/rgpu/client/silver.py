"""New halves for mirrored streams: found in the pool, given the state of one that has it, then one like the others.

The state goes from worker to worker; the client only says what there is. At one point of the stream the one sends and
the other receives; what comes after that point goes to both, so the program goes on meanwhile. Also how a session
moves to another server. Loses nothing when it fails: the half that had the state still has it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from rgpu.client import peer, state
from rgpu.client.follow import FollowingStream
from rgpu.client.mirror import Half, Mirror
from rgpu.client.queue import next_handle
from rgpu.errors import RgpuError
from rgpu.wire import ops, values
from rgpu.wire.functions import BY_NAME

RETRY = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before another attempt


class CannotCopy(RgpuError):
    """The session has something that no other worker can be given."""


def heal(mirror: Mirror) -> None:
    """Begin to look for another half, unless somebody does."""
    if mirror.healing is None or not mirror.healing.is_alive():
        mirror.healing = threading.Thread(target=_heal, args=(mirror,), name="rgpu-silver", daemon=True)
        mirror.healing.start()


def _heal(mirror: Mirror) -> None:
    for attempt in itertools.count():
        if mirror.over.wait(RETRY[min(attempt, len(RETRY) - 1)]) or mirror.stream.closed:
            return
        try:
            while len(mirror.whole) < mirror.wanted and mirror.failure is None:
                add(mirror, mirror.whole[0])
            return
        except (RgpuError, NotImplementedError, TimeoutError) as error:
            mirror.note = str(error)
        except Exception as error:  # a thread that dies in silence would leave the device degraded for ever
            mirror.note = f"{type(error).__name__}: {error}"


def add(mirror: Mirror, source: Half) -> Half:
    """Another half with the state of ``source``."""
    seat = mirror.find(list(mirror.halves))
    half = Half(mirror, seat)
    half.whole = False
    try:
        pair = peer.Pair(source, half)  # type: ignore[arg-type]
        if not pair.number:
            raise CannotCopy(f"the state cannot be copied: {pair.why}")
        with mirror.stream.lock:
            _begin(mirror, source, half, pair.number)
        for each in (source, half):  # first beside the program: what is left to wait for with the lock is little
            each.sync()
        with mirror.stream.lock:
            mirror.stream.flush()
            for each in (*mirror.whole, half):  # no question is under way that some of them never heard
                each.sync()
            mirror.admit(half)
    except BaseException as error:
        if half in mirror.halves:
            mirror.lose(half, error)
        else:
            half.connection.abort()
        raise
    for each in (source, half):
        with contextlib.suppress(RgpuError, TimeoutError):
            each.submit(ops.Call.encode(BY_NAME["peer.forget"].id, [], state.encoded(pair.number), {}))
    mirror.note = ""
    return half


def _begin(mirror: Mirror, source: Half, half: Half, pair: int) -> None:
    """At one point of the stream, whose lock is held: one sends, the other receives, and follows from here on."""
    stream = mirror.stream
    stream.flush()
    entries = state.describe(state.Line(source), objects=True)
    if left := state.left(entries):
        raise CannotCopy(f"the state cannot be copied: nobody can make a {left} again")
    tokens = list(enumerate(state.contents(entries), 1))
    half.post_past([ops.Twin.encode(True, mirror.alike(), len(mirror.whole), max(2, mirror.wanted))])
    ends = state.Line(source), state.Line(half)
    ends[1].post(ops.Template.encode(*template) for template in ends[0].ask("session.templates"))
    ends[1].post(state.building(entries))
    ends[0].post(_copying(ops.Send, pair, tokens))
    ends[1].post(_copying(ops.Receive, pair, tokens))
    for command in state.finishing(entries):
        ends[1].post([command])  # one a message: a graph may be long
    for end in ends:
        end.post(state.hidden(entries))
    ends[1].post(_following(stream))
    mirror.join(half)
    # From here on copies between devices do not go directly: both halves would make them. Not sooner: a pair that is
    # made while the lock is held would be made of what is now both.
    stream.peers_lost += 1


def _copying(how: Any, pair: int, tokens: list) -> Iterator[tuple]:
    for token, (handle, nbytes) in tokens:
        raw = next_handle()
        yield state.whole(raw, handle, nbytes)
        yield how.encode(pair, token, raw)
        yield ops.Free.encode([raw])


def _following(stream: Any) -> Iterator[tuple]:
    """What is current on the worker."""
    if isinstance(stream, FollowingStream):
        if stream.told_stream:
            yield ops.UseStream.encode(stream.told_stream)
        if stream.told_pool:
            pool = stream.told_pool if stream.told_pool < 0 else [values.HANDLE, stream.told_pool]
            yield ops.Call.encode(BY_NAME["memory.use_pool"].id, [], [pool], {})


def move(mirror: Mirror, leaving: Half) -> None:
    """The state of ``leaving``, and its part, go to another worker.
    Raises what prevents it; then nothing has changed.
    """
    add(mirror, leaving)
    with mirror.stream.lock:
        mirror.stream.flush()
        leaving.sync()  # what it was asked before, it has answered by now
        mirror.part(leaving)
    with contextlib.suppress(RgpuError, TimeoutError):
        leaving.submit(ops.Bye.encode())
    leaving.connection.close()
