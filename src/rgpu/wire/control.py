"""Control messages: client <-> daemon (requests and answers) and daemon <-> worker.

The daemon only admits: these messages grant, release and describe leases and never carry array
data. Tags 1..19 are asked by clients, 20..39 are the daemon's answers, 40..59 pass between a daemon
and its worker processes. ``Hello``, ``Welcome`` and ``Refused`` must keep their form for ever, so
that programs of different versions can at least tell each other so.
"""

from typing import Any

from rgpu.wire import limits
from rgpu.wire.declare import BOOL, NUMBER, PLAIN, U8, U16, U32, U64, Blob, ListOf, Message, Text

DEVICES = 1024  # devices of one server, and any bound derived from it
SESSION = Blob(16)
ENDPOINTS = ListOf(Text(1024), 16)
LEASE = Blob(16)  # empty: none; who knows it may use its devices
SECRET = Blob(32)
ANY_DEVICE = U16.bounds[1]  # "let the server choose"

REFUSALS = (
    *("protocol", "version", "no-device", "full", "quota", "no-lease", "draining"),
    *("starting", "stopping", "failed", "no-session", "not-yours", "denied"),
)
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
    """Ask for a session on a device, under a lease that ``Request`` gave or (empty) one of its own. ``seals``: its
    link may be a sealed one."""

    version: Text()
    fingerprint: Text()
    device: U16
    lease: LEASE
    user: Text()
    host: Text()
    pid: U32
    program: Text()
    seals: BOOL


class Release(Control, tag=3):
    """End a session; asking twice is harmless."""

    session: SESSION


class SessionState(Control, tag=4):
    """What became of a session whose link is down?"""

    session: SESSION


class Snapshot(Control, tag=5):
    """Everything rgpu-smi shows. Needs no matching version."""


class Request(Control, tag=6):
    """Ask for a lease on several devices, all or none. ``ticket`` (of a ``Queued``) asks again for a place in the
    queue. ``devices``: only these; ``memory`` bytes or ``fraction``, and ``compute`` share, of each (0: not asked
    for); ``seconds``: how long (0: while ``Renew`` keeps it); ``wait``: seconds in the queue at most. ``promised`` is
    the lease that the registry granted on ``devices`` at a ``revision`` (empty: ask this server)."""

    version: Text()
    fingerprint: Text()
    ticket: LEASE
    count: U16
    devices: ListOf(U16, DEVICES)
    memory: U64
    fraction: NUMBER
    compute: NUMBER
    seconds: NUMBER
    wait: NUMBER
    filters: ListOf(Text(), 32)
    placement: Text(16)
    promised: LEASE
    revision: U64
    user: Text()
    host: Text()
    pid: U32
    program: Text()


class Renew(Control, tag=7):
    """The holder of a lease is alive, and asks how the lease is."""

    lease: LEASE


class GiveBack(Control, tag=8):
    """End a lease and its sessions; asking twice is harmless."""

    lease: LEASE


class Drain(Control, tag=9):
    """Grant no new leases (``on``) or grant them again. ``seconds`` later (0: never) end those that are left."""

    on: BOOL
    seconds: NUMBER


class Visit(Control, tag=10):
    """Look into a session, by the name that rgpu-smi shows; its own user may."""

    session: Text(32)
    user: Text()


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
    key ("": it has none), the secret of its sealed links (empty: there are none; ``clear``: they prove it and seal
    nothing), and for how many seconds it waits for a client that is gone."""

    session: SESSION
    epoch: U32
    endpoints: ENDPOINTS
    key: Text()
    secret: SECRET
    clear: BOOL
    grace: NUMBER
    device: PLAIN
    lease: LEASE
    idle_timeout: NUMBER


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


class Leased(Control, tag=26):
    """The answer to ``Request``: the lease and its devices. Renew it every ``renew`` seconds (0: no need)."""

    lease: LEASE
    seconds: NUMBER
    renew: NUMBER
    devices: ListOf(PLAIN, DEVICES)


class Queued(Control, tag=27):
    """The other answer to ``Request``: ask again with the ticket. ``position`` 1 is next, of ``waiting``."""

    ticket: LEASE
    position: U32
    waiting: U32


class Kept(Control, tag=28):
    """The answer to ``Renew``: seconds left (0: no end is set) and what its holder should know."""

    seconds: NUMBER
    notice: Text()


class Drained(Control, tag=29):
    """The answer to ``Drain``: the leases and sessions that are left."""

    leases: U32
    sessions: U32


class Visiting(Control, tag=30):
    """The answer to ``Visit``: under which name to come, and where."""

    visit: SESSION
    endpoints: ENDPOINTS
    key: Text()


# Daemon -> worker


class Grant(Control, tag=40):
    """The session this worker serves from now on. ``memory_limit``: what its arrays may hold in the end;
    ``turns``: it runs when it has its ``Turn``; ``spill``: what is in device memory at once is bounded as well,
    the rest waits in ``spill_memory`` bytes of host memory (0: any), then in files in ``spill_directory``;
    ``mps``: percentage of the card's threads (0: all). ``client_key``: whom to let in ("": a server without keys),
    by ``sealed`` links or CURVE.
    ``folder``: where its libraries may keep what they compiled ("": the user's usual place)."""

    session: SESSION
    epoch: U32
    device: U16
    visible: Text()
    memory_limit: U64
    turns: BOOL
    spill: BOOL
    spill_directory: Text()
    spill_memory: U64
    mps: NUMBER
    grace: NUMBER
    client_key: Text()
    sealed: BOOL
    folder: Text(4096)


class Stop(Control, tag=41):
    """End now: the lease was given back or the daemon stops."""

    reason: Text()


class Credit(Control, tag=42):
    """The answer to ``Draw``: what the session may hold now (``resident``: in device memory), and what is left."""

    memory: U64
    resident: U64
    free: U64


class Turn(Control, tag=43):
    """Run for so many seconds, or less when there is nothing to run (0: until told otherwise)."""

    seconds: NUMBER


class Turns(Control, tag=44):
    """From now on this session runs when it has its ``Turn``, or (off) whenever it likes."""

    on: BOOL


class Spare(Control, tag=45):
    """Others need memory: give up what is not in use, and so many bytes of device memory by spilling; then ``Draw``."""

    resident: U64


class Leave(Control, tag=46):
    """The server is being drained: the session's client is asked to take it elsewhere."""


class Admit(Control, tag=47):
    """Somebody comes to look, under this name."""

    visit: SESSION


# Worker -> daemon


class Ready(Control, tag=50):
    """Warm and listening; may be granted. ``key``: the worker's own public key ("": it has none); ``secret``: of its
    sealed links."""

    endpoints: ENDPOINTS
    key: Text()
    secret: SECRET


class Telemetry(Control, tag=51):
    """Sent about once a second. Of ``wanted`` workers that should run the session's stream ``whole`` do.
    ``reach``: other host -> [seconds of a round trip, bytes a second], where this worker measured its links."""

    memory_used: U64
    resident: U64
    busy: NUMBER
    commands: U64
    whole: U8
    wanted: U8
    link: Text()
    reach: PLAIN


class Finished(Control, tag=52):
    """The last message of a worker that ends by itself, and why."""

    reason: Text(limits.TEXT)


class Draw(Control, tag=53):
    """What the session needs (or, being less than it has, keeps) of memory and device memory. ``answer``: it waits."""

    memory: U64
    resident: U64
    answer: BOOL


class Want(Control, tag=54):
    """There is something to run."""


class Yield(Control, tag=55):
    """The turn is over, after so many seconds of work; ``again``: there is more to run."""

    used: NUMBER
    again: BOOL


class Opened(Control, tag=56):
    """Where a visitor may come in."""

    visit: SESSION
    endpoints: ENDPOINTS
    key: Text()


def sender_of(message: Any) -> tuple[str, str] | None:
    """Version and fingerprint of who sent a message that does not fit its declaration, as far as it says them where
    ours do: another version may have other fields. None: it says nothing of the kind."""
    if type(message) not in (list, tuple) or not message or type(message[0]) is not int:
        return None
    declared = Control.registry.get(message[0])
    names = [field for field, _ in declared.fields] if declared is not None else []
    if "version" not in names:
        return None
    places = names.index("version") + 1, names.index("fingerprint") + 1
    version, mark = (message[at] if at < len(message) else None for at in places)
    good = all(type(x) is str and 0 < len(x) <= 64 and x.isprintable() for x in (version, mark))
    return (version, mark) if good else None
