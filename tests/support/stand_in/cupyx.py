"""What the cupy backend imports of cupyx, and nothing of it."""

import contextlib


@contextlib.contextmanager
def errstate(**_):
    yield
