"""Bad servers, bad numbers, bad arrays: the right answer or a clear error in time, never a hang."""

import contextlib
import http.server
import socket
import threading
import time

import numpy as np
import pytest

from rgpu import errors
from tests.support.servers import Server


@contextlib.contextmanager
def within(seconds):
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


@contextlib.contextmanager
def listener():
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def web_server():
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def connect(address):
    import rgpu

    try:
        rgpu.connect(address, connect_timeout=2)
    finally:
        rgpu.close()


def test_an_unknown_name():
    with within(6), pytest.raises(errors.ServerUnavailable, match=r"no-such-host.invalid.*(name|spelling)"):
        connect("no-such-host.invalid:7777")


def test_a_closed_port():
    address = closed_port()
    with within(3), pytest.raises(errors.ServerUnavailable, match=f"{address} refused.*start one"):
        connect(address)


def test_a_port_that_says_nothing():
    with (
        listener() as address,
        within(6),
        pytest.raises(errors.ServerUnavailable, match=f"{address}.*not an rgpu-server"),
    ):
        connect(address)


def test_a_web_server():
    with (
        web_server() as address,
        within(6),
        pytest.raises(errors.ServerUnavailable, match=f"{address}.*not an rgpu-server"),
    ):
        connect(address)


def test_a_stopped_server():
    with Server("cpu:1", "short") as server:
        address = server.address
    with within(3), pytest.raises(errors.ServerUnavailable, match="refused"):
        connect(address)


def test_one_of_two_servers_is_missing(servers):
    import rgpu

    address = closed_port()
    with within(4), pytest.raises(errors.ServerUnavailable, match=address):
        rgpu.connect(servers[0].address, address)
    rgpu.close()


@pytest.mark.parametrize("what", ["VERSION", "fingerprint"])
def test_another_version_is_refused_by_name(servers, monkeypatch, what):
    from rgpu.client import control

    other = "9.9.9" if what == "VERSION" else lambda: "feedfacefeedface"
    monkeypatch.setattr(control, what, other)
    with within(3), pytest.raises(errors.VersionMismatch, match="9.9.9|feedface") as caught:
        connect(servers[0].address)
    assert "hostA" in str(caught.value) and "install the same version" in str(caught.value)


@pytest.mark.parametrize("address", ["host:port", "host:0", "host:70000", "a b:1", "::::", "tcp://"])
def test_addresses_without_meaning(address):
    import rgpu

    with within(6), pytest.raises((errors.ConfigError, errors.ServerUnavailable)):
        connect(address)
    rgpu.close()


def test_a_device_that_is_not_there(cp):
    for number in (4, 99, -1):
        with pytest.raises(Exception, match="device|ordinal"):
            cp.cuda.Device(number).use()
            cp.ones(1)
    cp.cuda.Device(0).use()
    assert float(cp.ones(3).sum()) == 3


@pytest.mark.parametrize("shape", [-1, (2, -3), (1,) * 65, 2.5, "ab"])
def test_shapes_without_meaning(cp, shape):
    with pytest.raises((ValueError, TypeError)):
        cp.zeros(shape)


@pytest.mark.parametrize("shape", [1 << 60, (1 << 40, 1 << 40), (1 << 62, 4)])
def test_allocations_beyond_everything(cp, shape):
    for make in (cp.empty, cp.zeros, cp.ones):
        with pytest.raises((MemoryError, ValueError)):
            make(shape, np.uint8).get()
    assert float(cp.ones(3).sum()) == 3


@pytest.mark.parametrize("dtype", [object, str, "U5", "S3", "M8[s]", "m8[s]", [("a", object)], "nonsense"])
def test_dtypes_that_cannot_be(cp, dtype):
    with pytest.raises((ValueError, TypeError)):
        cp.zeros(3, dtype)


@pytest.mark.parametrize(
    "value", [object(), "text", [1, "a"], [None], {"a": 1}, np.array(["x"]), np.array([object()])]
)
def test_values_that_cannot_be(cp, value):
    with pytest.raises((ValueError, TypeError)):
        cp.array(value)


HOST = {
    "zero size": np.zeros((0, 3)),
    "zero size in the middle": np.zeros((2, 0, 4), np.int8),
    "0-d": np.array(3.5),
    "Fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "not contiguous": np.arange(24.0).reshape(4, 6)[::2, ::3],
    "reversed": np.arange(10)[::-1],
    "broadcast": np.broadcast_to(np.arange(3.0), (4, 3)),
    "permuted": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "big-endian": np.arange(5, dtype=">f8"),
    "big-endian integers": np.arange(7, dtype=">i4").reshape(7, 1),
    "float16": np.arange(5, dtype=np.float16),
    "complex": np.arange(4) * (1 + 2j),
    "bool": np.array([True, False]),
    "structured": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "aligned": np.zeros(3, dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "nested": np.zeros(2, dtype=[("p", [("x", "f4"), ("y", "f4")]), ("m", "i2", (2, 2))]),
    "large Fortran": np.asfortranarray(np.arange(1 << 20, dtype=float).reshape(1024, 1024)),
    "large strided": np.arange(1 << 20, dtype=float)[::3],
    "read-only": np.frombuffer(b"12345678", np.uint8),
}


@pytest.mark.parametrize("name", HOST)
def test_every_layout_goes_there_and_back(cp, name):
    host = HOST[name]
    array = cp.asarray(host)
    assert array.shape == host.shape and array.dtype == host.dtype.newbyteorder("=")
    for order in "CF":
        result = array.get(order=order)
        np.testing.assert_array_equal(result, host)
    np.testing.assert_array_equal(array.copy().get(), host)
    if host.ndim:
        np.testing.assert_array_equal(array[::-1].get(), host[::-1])
        np.testing.assert_array_equal(array.T.get(), host.T)
    if host.dtype.names is None:
        np.testing.assert_array_equal((array + array).get(), host + host)


def test_get_into_what_does_not_fit(cp):
    a = cp.ones((3, 4))
    for out, error in [
        (np.empty((4, 3)), ValueError),
        (np.empty((3, 4), "f4"), TypeError),
        (np.empty((3, 8))[:, ::2], RuntimeError),
        ([1, 2], TypeError),
    ]:
        with pytest.raises(error):
            a.get(out=out)
    fortran = np.empty((3, 4), order="F")
    np.testing.assert_array_equal(a.get(out=fortran), 1)
