"""Control messages: client <-> daemon (requests and answers) and daemon <-> worker.

The daemon only admits: these messages grant, release and describe leases and never carry array
data. Tags 1..19 are asked by clients, 20..39 are the daemon's answers, 40..59 pass between a daemon
and its worker processes. ``Hello``, ``Welcome`` and ``Refused`` must keep their form for ever, so
that programs of different versions can at least tell each other so.
"""

from rgpu.wire import limits
from rgpu.wire.declare import NUMBER, PLAIN, U16, U32, U64, Blob, ListOf, Message, Text

DEVICES = 1024  # devices of one server, and any bound derived from it
SESSION = Blob(16)
ENDPOINTS = ListOf(Text(1024), 16)
ANY_DEVICE = U16.bounds[1]  # "let the server choose"

REFUSALS = (
    "protocol", "version", "no-device", "full", "starting", "stopping", "failed", "no-session", "not-yours",
    "denied", "quota",
)  # fmt: skip
"""What ``Refused.reason`` may say; the client maps each to its own exception."""


class Control(Message):
    """The family."""


# Client -> daemon


class Hello(Control, tag=1):
    """First message of a client that wants to attach; the versions are compared here."""

    version: Text()
    fingerprint: Text()
    numpy_version: Text()


class Attach(Control, tag=2):
    """Ask for a lease on a device."""

    version: Text()
    fingerprint: Text()
    device: U16
    user: Text()
    host: Text()
    pid: U32
    program: Text()


class Release(Control, tag=3):
    """Give a lease back; asking twice is harmless."""

    session: SESSION


class SessionState(Control, tag=4):
    """What became of a session whose link is down?"""

    session: SESSION


class Snapshot(Control, tag=5):
    """Everything rgpu-smi shows. Needs no matching version."""


class End(Control, tag=19):
    """End a session by the name that rgpu-smi shows; its own user may."""

    session: Text(32)
    user: Text()


# Daemon -> client


class Welcome(Control, tag=20):
    """The answer to ``Hello``."""

    name: Text()
    version: Text()
    fingerprint: Text()
    devices: ListOf(PLAIN, DEVICES)


class Granted(Control, tag=21):
    """The answer to ``Attach``: where the worker of this session listens (any of the places will do), its public
    key ("": it has none), and for how many seconds it waits for a client that is gone."""

    session: SESSION
    epoch: U32
    endpoints: ENDPOINTS
    key: Text()
    grace: NUMBER
    device: PLAIN


class Released(Control, tag=22):
    """The answer to ``Release`` and ``End``."""


class State(Control, tag=23):
    """The answer to ``SessionState``: "alive", "unknown" or "dead: why"."""

    state: Text()


class Picture(Control, tag=24):
    """The answer to ``Snapshot``."""

    server: PLAIN


class Refused(Control, tag=25):
    """Any request may be answered with this: one of ``REFUSALS`` and a sentence for people."""

    reason: Text()
    message: Text(4096)


# Daemon -> worker


class Grant(Control, tag=40):
    """The lease this worker serves from now on; ``client_key``: whom to let in ("": a server without keys).
    ``folder``: where its libraries may keep what they compiled ("": the user's usual place)."""

    session: SESSION
    epoch: U32
    device: U16
    visible: Text()
    memory_limit: U64
    grace: NUMBER
    client_key: Text()
    folder: Text(4096)


class Stop(Control, tag=41):
    """End now: the lease was given back or the daemon stops."""

    reason: Text()


# Worker -> daemon


class Ready(Control, tag=50):
    """Warm and listening; may be granted. ``key``: the worker's own public key ("": it has none)."""

    endpoints: ENDPOINTS
    key: Text()


class Telemetry(Control, tag=51):
    """Sent about once a second."""

    memory_used: U64
    busy: NUMBER
    commands: U64
    link: Text()


class Finished(Control, tag=52):
    """The last message of a worker that ends by itself, and why."""

    reason: Text(limits.TEXT)
