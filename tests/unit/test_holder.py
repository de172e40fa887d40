"""A program's leases are renewed, each server by itself."""

import threading
from types import SimpleNamespace

from rgpu.client.holding import Holder
from rgpu.config import Address
from rgpu.errors import ServerUnavailable
from tests.support.waiting import wait_until


def test_a_server_that_does_not_answer_costs_no_lease_on_another():
    over, renewed = threading.Event(), []

    def silent(lease, patience):
        over.wait(10)
        raise ServerUnavailable("nobody is there")

    def well(lease, patience):
        assert patience == 0.05
        renewed.append(lease)
        return SimpleNamespace(notice="")

    holder = Holder()
    holder.add(SimpleNamespace(address=Address("gone", 1), renew=silent), b"a", 0.05)
    for lease in (b"b", b"c"):
        holder.add(SimpleNamespace(address=Address("there", 1), renew=well), lease, 0.05)
    try:
        wait_until(lambda: renewed.count(b"b") > 3 and renewed.count(b"c") > 3, timeout=5)
    finally:
        over.set()
        holder.close()
