"""Addresses of arrays: unique, found again as long as the array lives, never a host's."""

import gc
from types import SimpleNamespace

import pytest

from rgpu.cuda import addresses
from rgpu.cuda.errors import CUDARuntimeError


class Root:
    """What the address space sees of an array."""

    def __init__(self, handle, nbytes, device=0):
        self._handle, self._metadata = handle, SimpleNamespace(nbytes=nbytes)
        self._stream = SimpleNamespace(device=SimpleNamespace(ordinal=device))
        self._root, self._offset = None, 0


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(addresses, "_ranges", {})


def test_an_address_leads_back(monkeypatch):
    roots = [Root(i + 1, 100 * (i + 1)) for i in range(20)]
    starts = [addresses.of(root) for root in roots]
    assert starts == [addresses.of(root) for root in roots] == sorted(starts)
    for root, start in zip(roots, starts):
        assert start % addresses.UNIT == 0
        for offset in (0, 1, root._metadata.nbytes - 1, root._metadata.nbytes):
            assert addresses.find(start + offset) == (root, offset)


def test_devices_have_ranges_of_their_own():
    first, second = Root(1, 10), Root(2, 10, device=1)
    assert addresses.find(addresses.of(second)) == (second, 0)
    assert addresses.of(second) - addresses.of(first) >= 1 << 50
    assert addresses.is_device(addresses.of(first)) and not addresses.is_device(2**47)


def test_a_dead_arrays_address_is_nobodys_and_never_given_again():
    root, other = Root(1, 10), Root(2, 10)
    start, kept = addresses.of(root), addresses.of(other)
    del root
    gc.collect()
    for address in (start, start + 5, 0, 1 << 60, 1 << 63, -1):
        with pytest.raises(CUDARuntimeError) as caught:
            addresses.find(address)
        assert caught.value.status == 1
    assert addresses.find(kept)[0] is other
    assert addresses.of(Root(3, 10)) not in (start, kept)


def test_an_empty_allocation_has_the_null_address():
    assert addresses.of(Root(1, 0)) == 0
