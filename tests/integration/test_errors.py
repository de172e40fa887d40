"""Errors of commands nobody waited for: which array they belong to, when they surface, what they say."""

import numpy as np
import pytest

from rgpu import errors
from rgpu.client import meta
from rgpu.functions import dispatch
from tests.support.servers import Server, program

BROKEN = """
import numpy as np, rgpu as cp
from rgpu.client import meta
from rgpu.functions import dispatch
def broken():
    parts = [cp.ones((3, 3)), cp.ones((2, 2))]
    return dispatch.call_predicted("concatenate", meta.fresh((3, 3), np.dtype(float)), parts)
"""  # fails on the worker, and nowhere before


def broken(cp):
    """The same here: an array whose computation fails with ValueError."""
    result = meta.fresh((3, 3), np.dtype(float))
    return dispatch.call_predicted("concatenate", result, [cp.ones((3, 3)), cp.ones((2, 2))])


def test_a_failure_poisons_what_depends_on_it_and_nothing_else(cp):
    good = cp.ones(3)
    bad = broken(cp)
    chain = bad
    for _ in range(100):
        chain = chain + 1
    with pytest.raises(ValueError):
        chain.get()
    with pytest.raises(ValueError):
        (bad * 2).get()
    np.testing.assert_array_equal((good + 1).get(), 2)
    cp.cuda.Device().synchronize()  # the error has surfaced: nothing is left to tell


def test_the_notes_name_the_line_and_the_server(cp):
    bad = broken(cp)  # the guilty line
    with pytest.raises(ValueError) as caught:
        (bad + 1).get()
    notes = "\n".join(caught.value.__notes__)
    assert "test_errors.py" in notes and "dispatch.call_predicted" in notes
    assert "Traceback" in notes and "executor.py" in notes and "device 0" in notes


def test_synchronize_raises_once(cp):
    kept = broken(cp)
    with pytest.raises(ValueError):
        cp.cuda.Device().synchronize()
    cp.cuda.Device().synchronize()
    del kept


def test_two_failures_surface_one_after_the_other(cp):
    kept = [broken(cp), broken(cp)]
    for _ in kept:
        with pytest.raises(ValueError):
            cp.cuda.Device().synchronize()
    cp.cuda.Device().synchronize()


def in_place_failure(cp, a):
    """A command without a result that fails on the worker."""
    dispatch.run_internal("ndarray.sort", a, 7)


def test_a_command_without_result_surfaces_at_the_next_wait_once(cp):
    a, other = cp.ones(3), cp.ones(3)
    in_place_failure(cp, a)
    with pytest.raises(np.exceptions.AxisError):
        other.get()
    np.testing.assert_array_equal(other.get(), 1)
    np.testing.assert_array_equal(a.get(), 1)  # the command did not run; the array is what it was


def test_in_place_with_a_lost_value_loses_the_array_and_its_views(cp):
    a = cp.zeros(4)
    view = a[1:3]
    a[1:] += broken(cp)[0, 0]
    for lost in (a, view):
        with pytest.raises(ValueError):
            lost.get()


def test_a_lost_argument_of_a_call_keeps_the_session(cp):
    bad = broken(cp)
    with pytest.raises(ValueError):
        cp.concatenate([cp.ones((3, 3)), bad]).get()
    np.testing.assert_array_equal(cp.ones(3).get(), 1)


def test_launch_blocking_raises_at_the_line(servers):
    source = (
        BROKEN
        + """
try:
    broken()
except ValueError:
    print("at the line")
print(cp.ones(3).sum())
"""
    )
    assert program(source, servers[0], RGPU_LAUNCH_BLOCKING="1").stdout == "at the line\n3.0\n"


def test_check_prediction_finds_a_wrong_rule(servers):
    source = """
import numpy as np, rgpu as cp
from rgpu import errors
from rgpu.client import meta
from rgpu.functions import dispatch
from rgpu.client import predict
cp.ones(3).get()
predict.RULES["roll"] = lambda a, *_, **__: predict.fresh(a.shape, np.dtype("f4"))
cp.roll(cp.ones(3), 1)
try:
    cp.cuda.Device().synchronize()
except errors.PredictionError as error:
    print("found", "float32" in str(error))
"""
    assert program(source, servers[0], RGPU_CHECK_PREDICTION="1").stdout == "found True\n"


def test_an_error_nobody_saw_is_told_at_exit(servers):
    # the worker is at work before, so that the second that closing waits is for the answer alone
    done = program(BROKEN + "cp.ones(1).get(); x = broken()", servers[0])
    (line,) = done.stderr.splitlines()
    assert line.startswith("rgpu: an error was never seen by the program: ValueError")
    assert ":7" in line


def test_an_error_that_was_seen_is_not_told_again(servers):
    source = (
        BROKEN
        + """
x = broken()
try: x.get()
except ValueError: print("seen")
"""
    )
    done = program(source, servers[0])
    assert (done.stdout, done.stderr) == ("seen\n", "")


@pytest.fixture(scope="module")
def small():
    with Server("cpu:1", "small", "--device-memory", "64M") as server:
        yield server


@pytest.fixture
def limited(small):
    import rgpu

    rgpu.connect(small.address)
    yield rgpu
    rgpu.close()


def out_of_memory():
    from rgpu.cuda.memory import OutOfMemoryError

    return OutOfMemoryError


def test_the_limit_is_exact_and_the_session_lives_on(limited):
    cp, mib = limited, 1 << 20
    held = [cp.empty(16 * mib, np.uint8) for _ in range(4)]
    cp.cuda.Device().synchronize()  # exactly full
    one_more = cp.empty(1, np.uint8)
    with pytest.raises(out_of_memory()):
        one_more.get()
    np.testing.assert_array_equal(held[0][:3].get().shape, (3,))  # nothing else was hurt
    held.pop()
    again = cp.zeros(15 * mib, np.uint8)
    assert int(again.sum()) == 0
    with pytest.raises(out_of_memory()):
        (held[0] + held[1]).get()
    del held, again, one_more
    cp.cuda.Device().synchronize()
    assert int(cp.ones(60 * mib, np.uint8).sum()) == 60 * mib


def test_what_no_device_could_hold_is_refused_on_the_line(limited):
    with pytest.raises(out_of_memory()):
        limited.empty(65 << 20, np.uint8)
    with pytest.raises(out_of_memory()):
        limited.ones(1 << 50)


def test_temporaries_do_not_pile_up(limited):
    """Frees travel in order with the commands: at most three arrays of 8 MiB live at a time."""
    cp = limited
    a = cp.zeros(1 << 20)
    for _ in range(100):
        a = a * 1.0 + 1.0
    assert float(a[5]) == 100


def test_a_protocol_error_of_the_client_names_the_device(cp):
    from rgpu.client import pool
    from rgpu.wire import ops

    stream = pool.current_stream()
    stream.submit(ops.Unary.encode(0, 1 << 40, 1 << 41))  # handles that nobody made
    with pytest.raises(errors.SessionLost, match="device 0"):
        cp.ones(3).get()
    cp.reset()
    np.testing.assert_array_equal(cp.ones(3).get(), 1)
