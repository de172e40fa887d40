"""Servers that the tests of a module share, and a pool connected to them."""

import pytest

from tests.support.servers import Server


@pytest.fixture(scope="module")
def servers():
    """Two daemons with two cpu devices each."""
    with Server("cpu:2", "hostA") as first, Server("cpu:2", "hostB") as second:
        yield first, second


@pytest.fixture
def cp(servers):
    """The CuPy face, connected to both servers; everything is given back afterwards."""
    import rgpu

    rgpu.connect(*[server.address for server in servers])
    yield rgpu
    rgpu.close()
