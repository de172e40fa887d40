"""Who pays for an array in the worker's table: the account that was current when it was made."""

import pytest

from rgpu.server.table import Account, OutOfMemoryError, Poison, Table


def test_arrays_count_in_units_of_512_bytes():
    table = Table()
    table.put(1, "a", 1)
    table.put(2, "b", 513)
    table.put(3, "object")
    assert table.used == table.default.used == 512 + 1024
    table.free(1)
    table.free(1)
    table.free(3)
    assert table.used == 1024


def test_accounts_are_charged_and_credited_separately():
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


def test_the_limit_of_an_account_and_of_the_session():
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


def test_poison_frees_what_it_replaces():
    table = Table()
    table.put(1, "a", 512)
    table.poison(1, Poison((1, 0), "ValueError", [], ""))
    assert table.used == table.default.used == 0
