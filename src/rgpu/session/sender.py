"""The sending half of a session: numbers, window, what is kept, what is missing at the peer.

Go-back-N with a cursor: messages in [received, cursor) are on their way, those in [cursor, sent) wait
to leave. Only the answer to a probe moves the cursor back: a probe travels behind the data on the
same link, so what its answer does not confirm is really lost. A timer alone never repeats data.
"""

from collections import deque

MAX_BACKOFF = 8  # a busy peer is probed at most this many times less often than rto


class Sender:
    __slots__ = (
        "_awaiting", "_interval", "_kept", "_probe_at", "_probe_cursor", "_probe_id", "_rto", "_sizes",
        "cursor", "done", "highest", "open", "received", "resent", "sent", "syncing",
        "unacked_bytes", "unfinished_bytes", "window_bytes", "window_messages",
    )  # fmt: skip

    def __init__(self, window_messages: int, window_bytes: int, rto: float) -> None:
        self.window_messages, self.window_bytes, self._rto = window_messages, window_bytes, rto
        self.sent = 0  # messages numbered so far
        self.cursor = 0  # the next one to leave
        self.highest = 0  # everything below has left at least once
        self.received = 0  # the peer holds everything below
        self.done = 0  # the peer has executed everything below
        self.resent = 0  # messages that left more than once
        self.unacked_bytes = self.unfinished_bytes = 0
        self.open = True  # False while the link is down: nothing leaves
        self.syncing = False  # after a reconnect: data waits until the peer said what it has
        self._kept: deque[tuple[list, int]] = deque()  # [received, sent)
        self._sizes: deque[int] = deque()  # [done, sent)
        self._probe_id = 0
        self._awaiting: int | None = None  # the probe whose answer counts: always the latest
        self._probe_cursor = 0  # the cursor when it left
        self._probe_at: float | None = None  # when the next one is due
        self._interval = rto

    def can_send(self, nbytes: int) -> bool:
        """Whether the window takes a message of nbytes. A single oversized one may go alone."""
        unfinished = self.sent - self.done
        return unfinished == 0 or (
            unfinished < self.window_messages and self.unfinished_bytes + nbytes <= self.window_bytes
        )

    def add(self, frames: list, nbytes: int, now: float) -> None:
        self._kept.append((frames, nbytes))
        self._sizes.append(nbytes)
        self.sent += 1
        self.unacked_bytes += nbytes
        self.unfinished_bytes += nbytes
        if self._probe_at is None:
            self._probe_at = now + self._rto

    def next(self) -> tuple[int, list] | None:
        """Number and frames of the next message that may leave now."""
        seq = self.cursor
        if seq == self.sent or self.syncing or not self.open:
            return None
        if seq < self.highest:
            self.resent += 1
        else:
            self.highest = seq + 1
        self.cursor = seq + 1
        return seq, self._kept[seq - self.received][0]

    def acknowledged(self, received: int, done: int, now: float) -> bool:
        """The peer reports how far it is. False if it claims what it cannot have."""
        if not done <= received <= self.highest:
            return False
        if received <= self.received and done <= self.done:
            return True  # nothing new, or an old report overtaken by a newer one
        while self.received < received:
            self.unacked_bytes -= self._kept.popleft()[1]
            self.received += 1
        while self.done < done:
            self.unfinished_bytes -= self._sizes.popleft()
            self.done += 1
        self.cursor = max(self.cursor, self.received)
        if self.cursor == self.received:
            self.syncing = False  # nothing is on its way: nothing can be missing
        if not self.syncing:
            self._interval = self._rto
            self._probe_at = now + self._rto if self.done < self.sent else None
        return True

    def probe_due(self, now: float) -> bool:
        # The second test: a clock that jumped back must not silence the probes.
        at = self._probe_at
        return at is not None and self.open and (now >= at or at - now > 2 * MAX_BACKOFF * self._rto)

    def probe(self, now: float) -> int:
        """The number of the probe that leaves now."""
        self._probe_id += 1
        self._awaiting, self._probe_cursor = self._probe_id, self.cursor
        self._probe_at = now + self._interval
        self._interval = min(self._interval * 2, self._rto * MAX_BACKOFF)
        return self._probe_id

    def probe_soon(self, now: float) -> None:
        if self.done < self.sent:
            self._interval, self._probe_at = self._rto, now

    def answered(self, probe: int, received: int) -> None:
        """The peer answered a probe: what left before it and is not received was lost."""
        if probe != self._awaiting:
            return  # an older probe: it says nothing about what left since
        self._awaiting = None
        self.syncing = False
        if received < self._probe_cursor:
            self.cursor = max(received, self.received)

    def link_up(self, now: float) -> None:
        self.open = True
        self.syncing = self.cursor > self.received
        self.probe_soon(now)

    def link_down(self) -> None:
        self.open = False

    @property
    def due(self) -> float | None:
        """When there will be something to send, if nothing else happens."""
        if not self.open:
            return None
        if self.cursor < self.sent and not self.syncing:
            return float("-inf")
        return self._probe_at
