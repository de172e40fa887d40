"""Waiting for a condition, with an end. Tests use this instead of sleeping for a guessed time."""

import time


def wait_until(condition, timeout=10.0, every=0.01):
    """The first true value of ``condition()``; AssertionError with the last value when time runs out."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"still {value!r} after {timeout} s: {condition}")
        time.sleep(every)
