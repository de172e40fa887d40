"""Every command a client sends to its worker and every reply, one class each.

A message to the worker is ``[batch, [command, ...]]`` followed by payload frames that ``Write``
commands name by position. Commands run in order. Those without a reply never make the client
wait: an error poisons their results and comes back as ``Failed`` with ``reply_to`` 0.
"""

from rgpu.wire import limits
from rgpu.wire.declare import (
    BOOL,
    HANDLE,
    HANDLES,
    I64,
    SCALAR,
    SHAPE,
    STRIDES,
    U8,
    U16,
    U64,
    Blob,
    ListOf,
    Message,
    Optional,
    Text,
)  # fmt: skip
from rgpu.wire.values import DTYPE_KIND, OPERAND, VALUE, VALUE_MAP, VALUES


class Reply(Message):
    """From the worker to the client."""


class Done(Reply, tag=1):
    """The answer to a command that waits; arrays in ``value`` are described by RESULT values."""

    reply_to: U64
    value: VALUE


class Data(Reply, tag=2):
    """One chunk of an array that is read; the bytes are the message's payload frame."""

    reply_to: U64
    offset: U64


class Failed(Reply, tag=3):
    """An exception. ``reply_to`` 0: nobody waited, it belongs to command ``index`` of ``batch``."""

    reply_to: U64
    batch: U64
    index: U64
    handles: HANDLES
    kind: Text()
    args: VALUES
    traceback: Text(limits.LONG_TEXT)


class Digest(Reply, tag=4):
    """From the second of two workers, in place of ``Data``: the SHA-256 of the bytes that a read asked for."""

    reply_to: U64
    digest: Blob(32)


class Leeway(Reply, tag=5):
    """From here on results may differ between two workers by rounding (1) or by the order of sums (2)."""

    level: U8


class Leave(Reply, tag=6):
    """The server is being drained: the session should move to another one."""


class Command(Message):
    """From the client to its worker."""


class Bye(Command, tag=1):
    """The client is done: the worker frees everything and ends."""


class Free(Command, tag=2):
    """Forget handles. Never fails; unknown handles are ignored."""

    handles: HANDLES


class Empty(Command, tag=3):
    """Allocate an array; its content is undefined. Strides nil: C order."""

    out: HANDLE
    dtype: DTYPE_KIND
    shape: SHAPE
    strides: Optional(STRIDES)


class View(Command, tag=4):
    """Another array over the memory of ``root``, ``offset`` bytes from its beginning."""

    out: HANDLE
    root: HANDLE
    dtype: DTYPE_KIND
    shape: SHAPE
    strides: STRIDES
    offset: I64


class Unary(Command, tag=5):
    """``out = fn(a)`` for an element-wise function."""

    fn: U16
    out: HANDLE
    a: HANDLE


class Binary(Command, tag=6):
    """``out = fn(a, b)`` for an element-wise function of two operands."""

    fn: U16
    out: HANDLE
    a: OPERAND
    b: OPERAND


class Inplace(Command, tag=7):
    """``fn(a, b, out=a)``."""

    fn: U16
    a: HANDLE
    b: OPERAND


class Call(Command, tag=8):
    """``outs = fn(*args, **kwargs)`` with results whose number the client predicted."""

    fn: U16
    outs: HANDLES
    args: VALUES
    kwargs: VALUE_MAP


class Ask(Command, tag=9, reply=Done):
    """``fn(*args, **kwargs)``; arrays in the answer get the handles ``base``, ``base + 1``, ..."""

    reply_to: U64
    fn: U16
    base: HANDLE
    args: VALUES
    kwargs: VALUE_MAP


class Put(Command, tag=10):
    """A small C-ordered array with its data inside the message."""

    out: HANDLE
    dtype: DTYPE_KIND
    shape: SHAPE
    data: Blob(limits.INLINE_BYTES)


class Write(Command, tag=11):
    """Bytes for a contiguous array, ``offset`` bytes from its beginning, in payload frame ``frame``."""

    handle: HANDLE
    offset: U64
    frame: U16


class Read(Command, tag=12, reply=Data):
    """Send the array's bytes in C (0) or Fortran (1) order, chunk by chunk. Refused if the array is
    not what the client takes it for."""

    reply_to: U64
    handle: HANDLE
    order: U8
    dtype: DTYPE_KIND
    shape: SHAPE


class Sync(Command, tag=13, reply=Done):
    """Answer when everything before it has run, on the device too. Raises what is poisoned."""

    reply_to: U64


class UseStream(Command, tag=14):
    """The stream of the commands that follow; 0 is the default stream."""

    stream: U64


class Expect(Command, tag=15):
    """RGPU_CHECK_PREDICTION: the client believes that this handle has this layout."""

    handle: HANDLE
    dtype: DTYPE_KIND
    shape: SHAPE
    strides: STRIDES


class Template(Command, tag=16):
    """Commands that the client is going to repeat: their bytes in ``len(holes) + 1`` pieces of so many bytes, and what
    stands between them: a handle ``base + k``, or (nil) the next of a Replay's values."""

    template: U8
    count: U16
    data: Blob(limits.INLINE_BYTES)
    pieces: ListOf(U16, limits.HOLES + 1)
    holes: ListOf(Optional(I64), limits.HOLES)


class Replay(Command, tag=17):
    """A template's commands once more, in the place of as many of this message. Not within a template."""

    template: U8
    base: U64
    values: ListOf(SCALAR, limits.HOLES)


class Send(Command, tag=32):
    """The bytes of a contiguous array, in memory order, to a peer of this worker, under ``token``."""

    pair: U64
    token: U64
    handle: HANDLE


class Collective(Command, tag=34):
    """One operation of a communicator (by number: all_reduce, reduce, broadcast, reduce_scatter, all_gather, send,
    receive) on contiguous bytes; type, reduction and root are NCCL's numbers. Other ranks wait for it."""

    comm: HANDLE
    operation: U8
    source: Optional(HANDLE)
    target: Optional(HANDLE)
    dtype: U8
    reduction: U8
    root: U16


class Receive(Command, tag=33):
    """Wait for the bytes that a peer sends under ``token``: the new content of a contiguous array."""

    pair: U64
    token: U64
    handle: HANDLE


class Twin(Command, tag=35):
    """This session is one of ``wanted`` that run the same stream, ``whole`` of which do. The ``second`` answers reads
    with digests. ``alike``: the highest leeway within which the devices still give equal bits."""

    second: BOOL
    alike: U8
    whole: U8
    wanted: U8


class Again(Command, tag=36):
    """Send the data of a read that was answered with a digest; nothing where that is not known any more."""

    reply_to: U64


class Retire(Command, tag=37):
    """These reads have been answered: what a second worker keeps of them may go."""

    replies: ListOf(U64, limits.HANDLES)


class Keep(Command, tag=38):
    """Keep the present bytes of a contiguous array in a slot, for ``Recall``; at most UPLOAD_BYTES in all."""

    slot: U8
    handle: HANDLE


class Recall(Command, tag=39):
    """Fill a contiguous array with the bytes that were kept in a slot: the same upload again, without its data."""

    slot: U8
    handle: HANDLE


class Discard(Command, tag=40):
    """What is kept in these slots may go."""

    slots: ListOf(U8, limits.UPLOADS)
