"""What two workers say to each other over a direct connection, one class each.

A pair of workers shares a session of its own; its 16 secret bytes were handed to both by a client (or a
communicator) they trust, and are all that lets one speak to the other. Array bytes travel as payload
frames of ``Piece``. Nothing here names a handle: what arrives goes where the receiver's own client said.
"""

from rgpu.wire import limits
from rgpu.wire.declare import BOOL, U64, Blob, Message, Text
from rgpu.wire.values import VALUES

SECRET = Blob(16)


class Peer(Message):
    """Between two workers, both ways."""


class Greeting(Peer, tag=1):
    """First message of the one that connected, and the other's answer: that it is there, and what it is."""

    host: Text()
    kind: Text()


class Piece(Peer, tag=2):
    """Bytes from ``offset`` on of the ``total`` ones promised under ``token``, in the payload frame."""

    token: U64
    offset: U64
    total: U64


class Broken(Peer, tag=3):
    """There will be no bytes for ``token``: this error stands in their place. Token 0: for none at all."""

    token: U64
    kind: Text()
    args: VALUES
    traceback: Text(limits.LONG_TEXT)


class Lent(Peer, tag=4):
    """In place of the ``total`` bytes of ``token``: a ticket with which the receiver copies them out of the sender's
    device memory by itself. What a ticket is, the two devices' kind says (CUDA: handles of its IPC)."""

    token: U64
    ticket: Blob(256)
    total: U64


class Returned(Peer, tag=5):
    """What was lent is not needed any more. ``done`` False: the ticket was of no use, the bytes must come."""

    token: U64
    done: BOOL


class Ask(Peer, tag=6):
    """To be answered by ``Answer`` with the same number; a payload frame is thrown away."""

    number: U64


class Answer(Peer, tag=7):
    """Everything up to the question is here."""

    number: U64


class Meeting(Message):
    """Between the members of a communicator and the store where they meet."""


class Put(Meeting, tag=1):
    """Keep a text under a key, once."""

    secret: SECRET
    key: Text()
    text: Text(1024)


class Take(Meeting, tag=2):
    """The text of a key; answered when it is there."""

    secret: SECRET
    key: Text()


class Found(Meeting, tag=3):
    """The answer to ``Take`` and to ``Put``."""

    text: Text(1024)


class Refused(Meeting, tag=4):
    """The answer to anything that cannot be."""

    why: Text(1024)
