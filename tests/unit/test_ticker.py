"""The ticker: who queues something rings its bell, wherever that is in the program."""

import sys
import threading

from rgpu.client.ticker import Ticker


class _Stream:
    """Looks that are counted."""

    connection = None

    def __init__(self):
        self.looked = threading.Event()

    def tick(self):
        self.looked.set()
        return False


def test_a_finalizer_may_come_between_any_two_lines():
    """The collector runs finalizers of arrays in whatever thread allocates something, also in one that just queued a
    command and is about to ring: a lock there that is not this thread's twice stopped the program for ever."""
    ticker, stream = Ticker(), _Stream()
    ticker.add(stream)
    inside = []

    def finalizer(frame, event, _):
        if event == "line" and not inside:
            inside.append(event)
            ticker.arm()
            inside.clear()
        return finalizer

    def queue():
        sys.settrace(finalizer)
        try:
            for _ in range(3):
                ticker.arm()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=queue, daemon=True)
    thread.start()
    thread.join(20)
    stuck = thread.is_alive()
    ticker.remove(stream)
    assert not stuck
    stream.looked.clear()
    ticker.add(stream)
    ticker.arm()
    assert stream.looked.wait(20)
