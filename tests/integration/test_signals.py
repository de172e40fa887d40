"""Handlers of signals that use the devices, or raise: between any two lines of the client, in every kind of call."""

import signal

import pytest

from tests.support.servers import PURE, program

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
cores = pytest.mark.parametrize("core", [{}, PURE], ids=["compiled", "pure"])

#: what a program does, and what has to come out of it
CALLS = """
import faulthandler, os, signal, sys, time
import numpy as np
import rgpu as cp
faulthandler.dump_traceback_later(100, exit=True)
client = os.path.dirname(cp.__file__)
host = np.arange(100_000.0)
a, large, small, ours = cp.asarray(host), cp.zeros(1 << 17), cp.ones(4), cp.zeros(())

def read_behind_commands():
    b = a
    for _ in range(5):
        b = b + 1.0
    return (b.get() == host + 5).all()

def read_alone():
    return (small.get() == 1).all() and (small.get() == 1).all()

def synchronize():
    cp.cuda.get_current_stream().synchronize()
    return True

def upload():
    return float(cp.asarray(host[:3000]).sum()) == host[:3000].sum() and bool((cp.asarray(host) == a).all())

def read_much():
    return not large.get().any()

def ask():
    return cp.nonzero(small)[0].tolist() == [0, 1, 2, 3]

def fail():
    try:
        cp.linalg.cholesky(-cp.eye(3)).get()
    except Exception:
        pass
    return (a[:3].get() == host[:3]).all()

CALLS = [read_behind_commands, read_alone, synchronize, upload, read_much, ask, fail]
for call in CALLS * 3:
    assert call(), call

def handle(number, handler):
    # Until the client has seen that there is a handler: a moment after it was installed.
    from rgpu.client.shield import shield
    signal.signal(number, handler)
    while number not in shield._numbers:
        time.sleep(0.01)

def at_lines(action):
    # The tracer of all lines of the client's while a session's state may be between two.
    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(client):
            return None
        if event == "line":
            action()
        return trace
    return trace
"""

USES = """
came = wrong = 0
busy = False
def handler(number, frame):
    global busy
    if not busy:
        busy = True
        use()
        busy = False
def use():
    global ours, came, wrong
    came += 1
    ours = ours + 1.0
    if came % 3 == 0:
        wrong += float(ours) != came
    elif came % 3 == 1:
        wrong += not (cp.asarray(host[:100]).get() == host[:100]).all()
    elif came % 21 == 2:
        wrong += not (cp.asarray(host[:30000]).get() == host[:30000]).all()
handle(signal.SIGUSR1, handler)
"""


@pytest.mark.parametrize(
    "core, never", [({}, False), ({}, True), (PURE, False)], ids=["compiled", "compiled, missing", "pure"]
)
def test_a_handler_computes_and_reads_at_every_line_of_the_client(servers, core, never):
    """``missing``: no answer comes within the turn that asked for it."""
    source = f"""{CALLS}{USES}
class Never:
    seconds = near = lambda self: -1.0
    learn = lambda self, waited: None
if {never}:
    a._stream.connection._hope = Never()
answers = []
for call in CALLS:
    sys.settrace(at_lines(lambda: signal.raise_signal(signal.SIGUSR1)))
    answers.append(bool(call()))
    sys.settrace(None)
stats = a._stream.connection.stats
print(came > 500, wrong, float(ours) == came, answers.count(True), stats["reconnects"], stats["resent"])
"""
    assert program(source, servers[0], timeout=110, **core).stdout == "True 0 True 7 0 0\n"


def test_a_handler_computes_and_reads_whenever_a_timer_says_so(servers):
    source = f"""{CALLS}{USES}
handle(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
failed = 0
while came < 1000:
    for call in CALLS:
        failed += not call()
signal.setitimer(signal.ITIMER_REAL, 0)
print(failed, wrong, float(ours) == came)
"""
    assert program(source, servers[0], timeout=110).stdout == "0 0 True\n"


def test_a_handler_that_raises_wherever_handlers_run_leaves_the_session_as_it_was(servers):
    """An alarm at each moment at which the interpreter looks for one: a function begins, or one of C has returned."""
    source = f"""{CALLS}
class Enough(Exception):
    pass

def handler(number, frame):
    raise Enough
handle(signal.SIGALRM, handler)
raised = 0
for call in CALLS:
    for wanted in (*range(1, 80), *range(80, 400, 7)):
        left = wanted
        def count(frame, event, _):
            global left
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(client):
                left -= 1
                if not left:
                    sys.setprofile(None)
                    signal.raise_signal(signal.SIGALRM)
        sys.setprofile(count)
        try:
            call()
        except Enough:
            raised += 1
        finally:
            sys.setprofile(None)
        if left > 0:
            break
    assert all(other() for other in CALLS)
stream = a._stream
print(raised > 200, stream.batch == stream.connection.progress[0], stream._plain, stream._sinks, stream._sending,
    stream.connection.stats["reconnects"])
"""
    assert program(source, servers[0], timeout=110).stdout == "True True {} {} False 0\n"


@cores
def test_finalizers_compute_at_every_line_of_the_client(servers, core):
    """The collector runs them in the middle of anything. Where they would have to wait for what they have interrupted
    they are told so."""
    source = f"""{CALLS}
came = refused = wrong = 0
def finalizer():
    global ours, came, refused, wrong
    came += 1
    ours = ours + 1.0
    if came % 5 == 0:
        try:
            wrong += float(ours) != came
        except RuntimeError as error:
            assert "finalizer" in str(error)
            refused += 1
answers = []
for call in CALLS:
    sys.settrace(at_lines(finalizer))
    answers.append(bool(call()))
    sys.settrace(None)
print(came > 500, 0 < refused < came / 5, wrong, float(ours) == came, answers.count(True))
"""
    assert program(source, servers[0], timeout=110, **core).stdout == "True True 0 True 7\n"


@cores
def test_sending_ends_although_a_handler_computes_at_every_line_of_it(servers, core):
    """What it adds waits for the next time, else there would always be something to send."""
    source = f"""{CALLS}
from rgpu.client.stream import CommandStream
lines, results = 0, []
def compute():
    global lines
    lines += 1
    if lines > 5000:
        os._exit(3)
    results.append(small + 1.0)
def trace(frame, event, _):
    if frame.f_code not in (CommandStream.flush.__code__, CommandStream._send_batch.__code__):
        return None
    if event == "line":
        compute()
    return trace
stream, rounds = a._stream, []
for _ in range(5):
    small + 1.0
    sys.settrace(trace)
    stream.flush()
    sys.settrace(None)
    rounds.append(lines)
    lines = 0
print(max(rounds) < 1000, all((result.get() == 2).all() for result in results))
"""
    assert program(source, servers[0], **core).stdout == "True True\n"
