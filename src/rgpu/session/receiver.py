"""The receiving half of a session: what comes next, what was executed, when to say so.

Accepts exactly the next message, once; everything else is a duplicate or lies behind a gap and is
dropped (the peer keeps it). Acknowledgements ride on other messages; one of their own is due after a
share of the window or a short delay, whichever comes first.
"""

from collections import deque

ACK_DELAY = 0.01
ACK_SHARE = 8  # an acknowledgement is due at once after 1/8 of the window


class Receiver:
    __slots__ = (
        "_sizes", "_told_done", "_told_expected", "_untold_bytes", "ack_at", "ack_bytes", "ack_messages",
        "done", "duplicates", "expected", "gaps", "unfinished_bytes", "window_bytes", "window_messages",
    )  # fmt: skip

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        self.window_messages, self.window_bytes = window_messages, window_bytes
        self.ack_messages = max(1, window_messages // ACK_SHARE)
        self.ack_bytes = max(1, window_bytes // ACK_SHARE)
        self.expected = 0  # everything below was delivered
        self.done = 0  # everything below was executed
        self.duplicates = self.gaps = 0
        self.unfinished_bytes = 0
        self.ack_at: float | None = None  # when an acknowledgement of its own is due
        self._sizes: deque[int] = deque()  # delivered, not executed
        self._told_expected = self._told_done = self._untold_bytes = 0

    def accept(self, seq: int, nbytes: int, now: float) -> bool:
        """Whether this is the next message; it then counts as delivered."""
        if seq != self.expected:
            if seq < self.expected:
                self.duplicates += 1
                self.ack_at = now  # the peer does not know that we have it
            else:
                self.gaps += 1
            return False
        if self._sizes and not self._room(nbytes):
            self.gaps += 1  # a peer that ignores the window keeps the message
            return False
        self.expected = seq + 1
        self._sizes.append(nbytes)
        self.unfinished_bytes += nbytes
        self._news(nbytes, now)
        return True

    def mark_done(self, n: int, now: float) -> None:
        if not 0 < n <= self.expected - self.done:
            raise ValueError(f"{n} done, but {self.expected - self.done} delivered messages are open")
        finished = 0
        for _ in range(n):
            finished += self._sizes.popleft()
        self.unfinished_bytes -= finished
        self.done += n
        self._news(finished, now)

    def _room(self, nbytes: int) -> bool:
        return (
            self.expected - self.done < self.window_messages
            and self.unfinished_bytes + nbytes <= self.window_bytes
        )

    def _news(self, nbytes: int, now: float) -> None:
        self._untold_bytes += nbytes
        messages = self.expected - self._told_expected + self.done - self._told_done
        if messages >= self.ack_messages or self._untold_bytes >= self.ack_bytes:
            self.ack_at = now
        elif self.ack_at is None or self.ack_at > now + ACK_DELAY:
            self.ack_at = now + ACK_DELAY

    def told(self) -> None:
        """A message left that carries the present state."""
        self._told_expected, self._told_done, self._untold_bytes = self.expected, self.done, 0
        self.ack_at = None
