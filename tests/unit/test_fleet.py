"""Who gets which devices of a pool of servers, decided from what the registry says; without a registry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rgpu.errors import NoSuchDevice, QuotaExceeded, RgpuError, ServerBusy
from rgpu.leases.filters import parse_filters
from rgpu.leases.fleet import Held, decide, listed
from rgpu.leases.queue import Waiting
from rgpu.leases.terms import Terms

GIB = 1 << 30


def server(address, devices=1, leases=None, quotas=None, label="a", **book):
    about = {
        "devices": [{"memory_total": 8 * GIB, "labels": {"zone": label}} for _ in range(devices)],
        "quotas": quotas or {},
    }
    entries = {f"{address}{n}": Held(*lease).entry for n, lease in enumerate(leases or ())}
    return listed(address, about, {"leases": entries, **book})


def waiting(user, order, count=1, memory=8 * GIB, **terms):
    return Waiting(f"{user}{order}".encode(), user, order, Terms(count, memory, **terms))


def test_what_is_lent_drawn_full_or_draining_is_not_given_again():
    mine = waiting("me", 9, memory=4 * GIB)
    lent = server("a:1", leases=[("x", {0: 5 * GIB}, 0.0)])
    drawn, full, draining = server("b:1", drawn=[5 * GIB]), server("c:1", full=[True]), server("d:1", draining=True)
    assert decide([lent, drawn, full, draining, server("e:1")], [], mine).places == (("e:1", 0),)
    found = decide([lent, drawn, full, draining], [], mine)
    assert not found.places and isinstance(found.why, ServerBusy) and "--wait-for" in str(found.why)


def test_compute_filters_and_placement_are_kept_to_over_all_servers():
    half = server("a:1", leases=[("x", {0: 0}, 0.75)])
    assert decide([half, server("b:1")], [], waiting("me", 9, compute=0.5)).places == (("b:1", 0),)
    other = server("b:1", label="b")
    zone = waiting("me", 9, filters=parse_filters("label.zone=b"))
    assert decide([half, other], [], zone).places == (("b:1", 0),)
    same = waiting("me", 9, 2, placement="same-host")
    assert decide([half, server("b:1", 2)], [], same).places == (("b:1", 0), ("b:1", 1))
    with pytest.raises(NoSuchDevice):
        decide([half, other], [], same)


def test_first_in_first_out_and_nobody_passes_who_waits_for_the_same():
    servers = [server("a:1", leases=[("x", {0: GIB}, 0.0)]), server("b:1")]
    first, second = waiting("me", 1, 2), waiting("me", 2, 1)
    found = decide(servers, [first], second)
    assert not found.places and (found.position, found.waiting) == (2, 2) and "1 others wait" in str(found.why)
    elsewhere = waiting("me", 3, filters=parse_filters("label.zone=b"))
    assert decide([*servers, server("c:1", label="b")], [first], elsewhere).position == 2


def test_whoever_is_served_before_takes_other_devices():
    servers = [server("a:1"), server("b:1"), server("c:1")]
    first, second, third, fourth = (waiting(f"user{n}", n) for n in range(1, 5))
    got = [decide(servers, [one for one in (first, second, third, fourth) if one is not mine], mine).places
           for mine in (first, second, third)]  # fmt: skip
    assert len({place for places in got for place in places}) == 3
    assert not decide(servers, [first, second, third], fourth).places


def test_weights_of_users_count_over_the_whole_pool():
    """Alice holds two devices and has weight 4, Bob one and weight 1: Alice is next."""
    leases = [("alice", {0: 8 * GIB, 1: 8 * GIB}, 0.0), ("bob", {2: 8 * GIB}, 0.0)]
    weights = {"alice": {"weight": 4.0}, "bob": {"weight": 1.0}}
    alice, bob = waiting("alice", 2), waiting("bob", 1)
    assert decide([server("a:1", 4, leases, weights)], [bob], alice).places
    assert decide([server("a:1", 4, leases, weights)], [alice], bob).position == 2
    assert decide([server("a:1", 4, leases)], [bob], alice).position == 2


def test_a_server_where_the_quota_is_used_up_is_left_to_others():
    quotas = {"me": {"memory": 8 * GIB, "compute": 0.0, "devices": 0, "weight": 1.0}}
    mine = [("me", {0: 8 * GIB}, 0.0)]
    used_up = server("a:1", 2, mine, quotas)
    assert decide([used_up, server("b:1")], [], waiting("me", 1)).places == (("b:1", 0),)
    assert isinstance(decide([used_up], [], waiting("me", 1)).why, QuotaExceeded)
    assert decide([used_up], [waiting("me", 1)], waiting("you", 2)).places == (("a:1", 1),)


def test_servers_that_do_not_answer_are_not_chosen():
    servers, mine = [server("a:1"), server("b:1")], waiting("me", 1)
    assert decide(servers, [], mine, skip=frozenset({"a:1"})).places == (("b:1", 0),)
    assert "too few answer" in str(decide(servers, [], mine, skip=frozenset({"a:1", "b:1"})).why)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 8), st.sampled_from([0, 0.25, 1])),
             min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)), max_size=4),
)  # fmt: skip
def test_all_askers_come_to_answers_that_fit_together(requests, lent):
    """Each decides alone; what they get together is never more than there is."""
    leases = [[("x", {device: memory * GIB // 2}, 0.1)] for device, memory in lent]
    servers = [server(f"s{n}:1", 2, one) for n, one in enumerate(leases)] or [server("s:1", 2)]
    queue = [waiting(user, n, count, memory * GIB, compute=compute)
             for n, (user, count, memory, compute) in enumerate(requests)]  # fmt: skip
    used = {}
    for mine in queue:
        try:
            found = decide(servers, [one for one in queue if one is not mine], mine)
        except RgpuError as error:
            assert isinstance(error, NoSuchDevice)
            continue
        assert len(found.places) in (0, mine.item.count) and len(set(found.places)) == len(found.places)
        for place in found.places:
            memory, compute = used.get(place, (0, 0.0))
            used[place] = (memory + mine.item.memory, compute + mine.item.compute)
    for one in servers:
        for device, room in enumerate(one.rooms("anybody")):
            memory, compute = used.get((one.address, device), (0, 0.0))
            assert memory <= room.memory_free and compute <= room.compute_free + 1e-9
