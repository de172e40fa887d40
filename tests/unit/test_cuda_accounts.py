"""Who pays for an array in the worker's table: the account that was current when it was made."""

import pytest

from rgpu.errors import ProtocolError
from rgpu.server import table as tables
from rgpu.server.table import OutOfMemoryError, Poison

KINDS = {"pure": (tables.PureTable, tables.PureAccount), "used": (tables.Table, tables.Account)}


@pytest.fixture(params=KINDS)
def kinds(request):
    """Each test on the table in Python, and on the one that is used: the C core's where it was built."""
    return KINDS[request.param]


def test_arrays_count_in_units_of_512_bytes(kinds):
    Table, _ = kinds
    table = Table()
    table.put(1, "a", 1)
    table.put(2, "b", 513)
    table.put(3, "object")
    assert table.used == table.default.used == 512 + 1024
    table.free(1)
    table.free(1)
    table.free(3)
    assert table.used == 1024


def test_accounts_are_charged_and_credited_separately(kinds):
    Table, Account = kinds
    table = Table()
    pool = Account()
    table.put(1, "a", 512)
    table.account = pool
    table.put(2, "b", 512)
    table.account = table.default
    table.put(3, "c", 512)
    assert (table.used, table.default.used, pool.used) == (1536, 1024, 512)
    table.free(2)
    table.free(3)
    assert (table.used, table.default.used, pool.used) == (512, 512, 0)
    table.free(1)
    assert table.used == table.default.used == 0


def test_the_total_of_an_account_is_the_most_it_had(kinds):
    Table, Account = kinds
    table = Table()
    table.account = pool = Account()
    table.put(1, "a", 1024)
    table.put(2, "b", 1024)
    table.free(1)
    table.put(3, "c", 512)
    assert (pool.used, pool.total, table.default.total) == (1536, 2048, 0)
    pool.total = pool.used
    table.put(4, "d", 512)
    assert pool.total == 2048


def test_the_limit_of_an_account_and_of_the_session(kinds):
    Table, Account = kinds
    table = Table(limit=4096)
    table.account = Account(limit=1024)
    table.put(1, "a", 1024)
    with pytest.raises(OutOfMemoryError) as caught:
        table.put(2, "b", 1)
    assert caught.value.args == (512, 1024, 1024)
    table.account = table.default
    table.put(2, "b", 3072)
    with pytest.raises(OutOfMemoryError) as caught:
        table.admit(512)
    assert caught.value.args == (512, 4096, 4096)


def test_poison_frees_what_it_replaces(kinds):
    Table, _ = kinds
    table = Table()
    table.put(1, "a", 512)
    table.poison(1, Poison((1, 0), "ValueError", [], ""))
    assert table.used == table.default.used == 0


def test_handles_come_and_go(kinds):
    Table, _ = kinds
    table, live = Table(), {}
    for n in range(1, 3000):
        handle = n * 2**40 + n % 7
        table.put(handle, n)
        live[handle] = n
        if n % 3 == 0:
            gone = next(iter(live))
            table.free(gone)
            del live[gone]
    assert table.entries == live and len(table) == len(live)
    assert all(table.get(handle) == n for handle, n in live.items())
    with pytest.raises(ProtocolError, match="in use"):
        table.put(next(iter(live)), 0)
    for wrong in (7, -1, 2**64, "a", None):
        assert table.peek(wrong) is None
        with pytest.raises(ProtocolError, match="unknown handle"):
            table.get(wrong)


def test_what_shares_a_memory_is_lost_together(kinds):
    Table, _ = kinds
    table, error = Table(), Poison((1, 0), "ValueError", [], "")
    table.put(1, "root", 512)
    table.put(2, "other", 512)
    table.put_view(3, "view", 1)
    table.put_view(4, "view", 1)
    table.free(4)
    assert (table.root(3), table.root(1), sorted(table.sharing(1))) == (1, 0, [1, 3])
    assert table.owner(1) == "root"
    with pytest.raises(ProtocolError, match="is a view"):
        table.owner(3)
    table.poison_memory(3, error)
    for handle in (1, 3):
        with pytest.raises(Poison):
            table.get(handle)
    assert table.get(2) == "other" and table.used == 512
