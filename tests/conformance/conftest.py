"""Servers with the devices that ``--backend`` names, and a pool connected to them.

The same tests run on cpu devices everywhere and on GPUs where there are some (``tests/gpu``).
"""

import pytest

from tests.support.servers import Server


@pytest.fixture(scope="module")
def servers(request):
    """Two daemons with two cpu devices each, or one with this host's GPUs."""
    if request.config.getoption("--backend") == "cupy":
        with Server("cuda", "gpus") as only:
            yield (only,)
        return
    with Server("cpu:2", "hostA") as first, Server("cpu:2", "hostB") as second:
        yield first, second


@pytest.fixture
def cp(servers):
    """The CuPy face, connected to the servers; everything is given back afterwards."""
    import rgpu

    rgpu.connect(*[server.address for server in servers], check_prediction=True)
    yield rgpu
    rgpu.close()


@pytest.fixture
def two(cp):
    """The face, where there are two devices at least."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two devices")
    return cp
