"""The conformance tests on this host's GPUs: the same fixtures over a server of CUDA devices."""

import pytest

from tests.conformance.conftest import cp, two
from tests.support.servers import Server

__all__ = ["cp", "two"]


@pytest.fixture(scope="module")
def servers():
    """One daemon with all GPUs of this host."""
    with Server("cuda", "gpus") as only:
        yield (only,)
