"""A resumable conversation: reliable, in order, exactly once, over links that break and lose.

Sans-IO: it turns messages into messages and never touches a socket, a thread or the wall clock. It
never copies a payload: the frames given to ``send`` are kept as they are until the peer has them, so
their memory must not change before then.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rgpu import _native
from rgpu.session.header import ACK, DATA, HEADER, MAGIC, PROBE, PROBE_ACK
from rgpu.session.receiver import Receiver
from rgpu.session.sender import Sender


class PureSession:
    """One end of the conversation ``session_id`` in one ``epoch``. Both ends use the same windows."""

    def __init__(
        self,
        session_id: bytes,
        epoch: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        window_messages: int = 256,
        window_bytes: int = 64 << 20,
        rto: float = 1.0,
    ) -> None:
        if len(session_id) != 16:
            raise ValueError("a session id has 16 bytes")
        self.session_id, self.epoch = bytes(session_id), epoch
        self.window_messages, self.window_bytes = window_messages, window_bytes
        self._clock = clock
        self._sender = Sender(window_messages, window_bytes, rto)
        self._receiver = Receiver(window_messages, window_bytes)
        self._probed: int | None = None  # the peer's latest probe
        self._answer: int | None = None  # the probe that we owe an answer
        self.idle_since = clock()  # when the peer was last heard
        self.refused = 0  # messages that were not of this conversation
        self.refusal = ""  # why the last one was refused

    # Sending

    def can_send(self, nbytes: int) -> bool:
        """Whether the window has room for a message of nbytes."""
        return self._sender.can_send(nbytes)

    def send(self, frames: list, hold: bool = False) -> list | None:
        """Number a message and keep it. Returns it with its header if it may leave now; else, and
        with ``hold``, ``outgoing`` will bring it. A frame is bytes or a flat memoryview of bytes."""
        sender = self._sender
        sender.add(frames, sum(map(len, frames)), self._clock())
        return None if hold or sender.cursor != sender.sent - 1 else self._data()

    def poll(self, now: float) -> list | None:
        """The next message to put on the link now, or None. Data in order, control when due."""
        sender = self._sender
        if not sender.open:
            return None
        if self._answer is not None:
            probe, self._answer = self._answer, None
            return [self._header(PROBE_ACK, probe)]
        if sender.probe_due(now):
            return [self._header(PROBE, sender.probe(now))]
        if (data := self._data()) is not None:
            return data
        ack_at = self._receiver.ack_at
        return [self._header(ACK, 0)] if ack_at is not None and now >= ack_at else None

    def outgoing(self, now: float) -> list[list]:
        """Everything that is to leave now."""
        return list(iter(lambda: self.poll(now), None))

    def due(self) -> float | None:
        """When ``poll`` will next have something, if nothing arrives; None: never."""
        if self._answer is not None and self._sender.open:
            return float("-inf")
        times = [t for t in (self._sender.due, self._receiver.ack_at) if t is not None]
        return min(times) if times and self._sender.open else None

    def probe(self) -> None:
        """Ask the peer at once how far it is, if anything is unfinished."""
        self._sender.probe_soon(self._clock())

    def _data(self) -> list | None:
        item = self._sender.next()
        return None if item is None else [self._header(DATA, item[0]), *item[1]]

    def _header(self, kind: int, seq: int) -> bytes:
        receiver = self._receiver
        receiver.told()
        return HEADER.pack(MAGIC, kind, self.epoch, self.session_id, seq, receiver.expected, receiver.done)

    # Receiving

    def expects(self, header) -> bool:
        """Whether a message with this header would be delivered: only then may its payload be
        received into its final place. What it acknowledges counts already."""
        fields = self._parse(header)
        if fields is None or fields[0] != DATA or fields[1] != self._receiver.expected:
            return False
        return self._sender.acknowledged(*fields[2:], self._clock())

    def receive(self, frames: list) -> list | None:
        """Take a message from the link. Returns its payload frames if it is the next one."""
        fields = self._parse(frames[0]) if frames else None
        if fields is None:
            self._refuse("not a header of this session and epoch")
            return None
        kind, seq, received, done = fields
        now = self._clock()
        if not self._sender.acknowledged(received, done, now):
            self._refuse(f"acknowledges {received} received, {done} done; {self._sender.highest} were sent")
            return None
        self.idle_since = now
        if kind == DATA:
            payload = frames[1:]
            return payload if self._receiver.accept(seq, sum(map(len, payload)), now) else None
        if kind == PROBE:
            self._probed = self._answer = seq if self._probed is None else max(self._probed, seq)
        elif kind == PROBE_ACK:
            self._sender.answered(seq, received)
        return None

    def mark_done(self, n: int = 1) -> bool:
        """The owner has executed n more delivered messages, in order. Whether something has to leave now."""
        now = self._clock()
        self._receiver.mark_done(n, now)
        due = self.due()
        return due is not None and due <= now

    def _parse(self, header) -> tuple[int, int, int, int] | None:
        if len(header) != HEADER.size:
            return None
        magic, kind, epoch, session_id, seq, received, done = HEADER.unpack(header)
        if magic != MAGIC or epoch != self.epoch or session_id != self.session_id:
            return None
        return (kind, seq, received, done) if DATA <= kind <= PROBE_ACK else None

    def _refuse(self, why: str) -> None:
        self.refused += 1
        self.refusal = why

    # The link

    def link_up(self) -> None:
        """A link is there: ask what the peer has before sending more, and resend what it lacks."""
        self._sender.link_up(self._clock())
        self._answer = self._probed  # an answer may have been lost with the old link

    def link_down(self) -> None:
        self._sender.link_down()

    # State

    @property
    def unacked(self) -> tuple[int, int]:
        """Messages and bytes that the peer may not have: their memory must not change."""
        return self._sender.sent - self._sender.received, self._sender.unacked_bytes

    @property
    def unfinished(self) -> tuple[int, int]:
        """Messages and bytes that the peer has not reported as executed: what the window counts."""
        return self._sender.sent - self._sender.done, self._sender.unfinished_bytes

    @property
    def counters(self) -> dict[str, int]:
        """Totals for statistics: numbered, resent, delivered, duplicates, gaps, refused."""
        sender, receiver = self._sender, self._receiver
        return {
            "sent": sender.sent,
            "resent": sender.resent,
            "delivered": receiver.expected,
            "duplicates": receiver.duplicates,
            "gaps": receiver.gaps,
            "refused": self.refused,
        }

    @property
    def idle(self) -> bool:
        """Whether everything that was delivered has been executed."""
        return self._receiver.expected == self._receiver.done

    @property
    def progress(self) -> tuple[int, int, int]:
        """How many of our messages were sent, are received and are done."""
        return self._sender.sent, self._sender.received, self._sender.done

    def __repr__(self) -> str:
        sender, receiver = self._sender, self._receiver
        state = "syncing" if sender.syncing else "open" if sender.open else "down"
        return (
            f"<Session {self.session_id.hex()[:8]} epoch {self.epoch} {state}: sent {sender.sent},"
            f" received {sender.received}, done {sender.done}; delivered {receiver.expected},"
            f" executed {receiver.done}>"
        )


if TYPE_CHECKING or _native.link is None:
    Session = PureSession
else:
    Session = _native.link.Session  # csrc/link_session.c
