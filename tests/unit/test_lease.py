"""The book of leases, the broker around it, and the policy of who gets what: no sockets, a clock of our own."""

import secrets

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rgpu.config import Quota, parse_quotas
from rgpu.errors import LeaseEnded, NoSuchDevice, QuotaExceeded, ServerBusy, ServerDraining
from rgpu.leases.filters import parse_filter
from rgpu.leases.nearness import TOLD, Reach
from rgpu.leases.placement import Room, choose
from rgpu.leases.queue import Waiting, grant_in_order, in_order
from rgpu.leases.terms import Client, Quotas, Terms
from rgpu.server import lease
from rgpu.server.broker import FORGOTTEN_AFTER, MOST_LEASES, MOST_REQUESTS, MOST_WAITING, Broker, Place
from rgpu.server.lease import LeaseBook

GIB = 1 << 30


def client(user="u"):
    return Client(user, "h", 1, "p")


def keyed(user):
    return Client(user, "h", 1, "p", key=f"the key of {user}")


class Clock:
    now = 5.0

    def __call__(self):
        return self.now


def broker(totals=(8 * GIB,), factor=1.0, quotas="", **rest):
    clock = Clock()
    book = LeaseBook(clock, totals, factor=factor)
    made = Broker(
        book,
        [{"name": f"gpu{i}", "memory_total": total} for i, total in enumerate(totals)],
        lambda device: 0.0,
        Quotas({q.user: q for q in parse_quotas(quotas)}),
        **rest,
    )
    return made, book, clock


class TestBook:
    def test_one_persons_ends_push_out_nobody_elses(self):
        made, book, _ = broker()
        mine = made.request(keyed("quiet"), Terms())
        book.end(mine.id, "its time is over")
        for _ in range(lease.REMEMBERED + 10):
            book.end(made.request(keyed("busy"), Terms()).id, "given back")
        assert book.state(mine.id) == "dead: its time is over"
        assert len(book._fates._whose) == lease.REMEMBERED == sum(map(len, book._fates._reasons.values()))

    def test_the_life_of_a_session_of_its_own_lease(self):
        made, book, _ = broker((GIB, GIB))
        first, second = book.open(made.admit(client(), 0), 0, client()), book.open(made.admit(client(), 1), 1, client())
        assert first.id != second.id and len(first.id) == 16 and first.since == 5.0
        assert book.sessions_on(1) == [second] and book.named(second.name) is second
        assert book.state(first.id) == "alive"
        assert book.close(first.id, "signal 9") is first
        assert book.close(first.id, "later") is None
        assert book.state(first.id) == "dead: signal 9"
        assert book.state(b"?" * 16) == "unknown"
        assert list(book) == [second.lease]

    def test_the_book_forgets_the_oldest_dead_and_no_living(self, monkeypatch):
        monkeypatch.setattr(lease, "REMEMBERED", 3)
        made, book, _ = broker()
        living = made.request(client(), Terms(memory=1))
        dead = [made.request(client(), Terms(memory=1)).id for _ in range(5)]
        for one in dead:
            book.end(one, "bye")
        for one in dead[:2]:
            with pytest.raises(LeaseEnded, match="does not know it"):
                book.lease(one)
        with pytest.raises(LeaseEnded, match="over: bye"):
            book.lease(dead[-1])
        assert book.lease(living.id) is living

    def test_a_lease_outlives_its_sessions_and_ends_them(self):
        made, book, _ = broker((GIB, GIB))
        held = made.request(client(), Terms(count=2, memory=GIB // 2))
        session = book.open(held, 0, client())
        book.close(session.id, "bye")
        assert book.lease(held.id) is held
        with pytest.raises(NoSuchDevice, match=r"not among those of this lease: \[0, 1\]"):
            book.open(held, 7, client())
        session = book.open(held, 1, client())
        assert book.end(held.id, "given back") == [session]
        assert book.state(session.id) == "dead: given back" and len(book) == 0
        assert book.end(held.id, "again") == []

    def test_a_silent_holder_whose_sessions_go_on(self):
        """Workers watch for their clients themselves, on links of their own."""
        made, book, clock = broker()
        held = made.request(client(), Terms(memory=1))
        book.renew(held.id)
        session = book.open(held, 0, client())
        clock.now += 24.0
        assert made.overdue() == []
        book.close(session.id, "gone")
        assert made.overdue() == [(held, "the holder of the lease was gone for more than 10 s")]
        book.open(held, 0, client())
        clock.now += 0.1
        assert made.overdue() == [(held, "the holder of the lease was gone for more than 24 s")]

    def test_why_leases_end_by_themselves(self):
        made, book, clock = broker(idle_timeout=100.0)
        timed = made.request(client(), Terms(memory=1, seconds=60.0))
        held = made.request(client(), Terms(memory=1))
        unclaimed = made.request(client(), Terms(memory=1))
        own = made.admit(client(), None)
        book.renew(held.id)
        clock.now += 10.0
        assert made.overdue() == []
        clock.now += 0.1
        assert made.overdue() == [(held, "the holder of the lease was gone for more than 10 s")]
        book.renew(held.id)
        assert made.overdue() == []
        clock.now += 20
        assert made.overdue()[-1] == (unclaimed, "the holder of the lease was gone for more than 10 s")
        clock.now += 31
        assert (timed, "the time of the lease is over") in made.overdue()
        book.renew(held.id)
        clock.now += 30
        book.renew(held.id)
        assert made.notice(held) == "the lease has been idle for 91 s and will be given back in 9 s unless it is used"
        clock.now += 10
        book.renew(held.id)
        assert (own, "the lease was idle for more than 100 s") in made.overdue()
        own.active = clock.now
        assert own not in [one for one, _ in made.overdue()]


class TestWhatIsLent:
    def test_memory_is_set_aside_and_the_rest_is_drawn_from(self):
        made, book, _ = broker((8 * GIB,))
        held = made.request(client(), Terms(memory=5 * GIB))
        one, two = (book.open(made.admit(client(), 0), 0, client()) for _ in range(2))
        mine = book.open(held, 0, client())
        assert made.draw(one, 2 * GIB) == 2 * GIB
        assert made.draw(two, GIB + 1) == 0, "one byte more than is left"
        assert made.draw(two, GIB) == GIB
        assert made.free_for(one) == 0 and made.free_for(mine) == 5 * GIB
        assert made.draw(mine, 5 * GIB) == 5 * GIB and made.draw(mine, 5 * GIB + 1) == 5 * GIB
        assert made.draw(one, GIB) == GIB, "what is not needed goes back"
        with pytest.raises(ServerBusy, match="device 0 has 1 GiB and 100% of its compute left"):
            made.request(client(), Terms(memory=GIB + 1))
        made.request(client(), Terms(memory=GIB))
        late = book.open(made.admit(client(), 0), 0, client())
        assert made.draw(late, 1) == 0, "it may come, and gets what others give back"
        assert made.draw(one, 0) == 0 and made.draw(late, GIB) == GIB

    def test_sessions_of_one_lease_share_it(self):
        made, book, _ = broker()
        held = made.request(client(), Terms(memory=3 * GIB))
        one, two = book.open(held, 0, client()), book.open(held, 0, client())
        assert made.draw(one, 2 * GIB) == 2 * GIB
        assert made.draw(two, 2 * GIB) == 0 and made.draw(two, GIB) == GIB

    def test_a_fraction_and_a_share(self):
        made, book, _ = broker((10 * GIB,))
        held = made.request(client(), Terms(fraction=0.25, compute=0.75))
        assert held.parts == {0: int(2.5 * GIB)} and book.compute_free(0) == pytest.approx(0.25)
        with pytest.raises(ServerBusy, match="25% of its compute left"):
            made.request(client(), Terms(compute=0.5))
        made.request(client(), Terms(compute=0.25))

    def test_oversubscription_lends_more_than_there_is(self):
        made, book, _ = broker((4 * GIB,), factor=2.0)
        made.request(client(), Terms(memory=6 * GIB))
        with pytest.raises(ServerBusy, match="device 0 has 2 GiB"):
            made.request(client(), Terms(memory=3 * GIB))
        with pytest.raises(NoSuchDevice, match="the largest has 8 GiB"):
            made.request(client(), Terms(memory=9 * GIB))


class TestQuotas:
    QUOTA = "alice:memory=4GiB,compute=1,devices=2"

    def test_up_to_the_quota_and_not_a_byte_more(self):
        made, book, _ = broker((8 * GIB, 8 * GIB), quotas=self.QUOTA)
        made.request(client("alice"), Terms(memory=4 * GIB - 512))
        with pytest.raises(QuotaExceeded, match="quota of user alice is 4 GiB of memory; 4 GiB are held"):
            made.request(client("alice"), Terms(memory=513))
        made.request(client("alice"), Terms(memory=512))
        made.request(client("bob"), Terms(memory=8 * GIB - 512))
        with pytest.raises(QuotaExceeded, match="2 devices; 2 are held and 1 asked for"):
            made.admit(client("alice"), None)

    def test_what_can_never_be_is_refused_at_once(self):
        made, _, _ = broker((8 * GIB, 8 * GIB), quotas=self.QUOTA)
        with pytest.raises(QuotaExceeded, match="0 bytes are held and 6 GiB asked for"):
            made.request(client("alice"), Terms(count=2, memory=3 * GIB), wait=100)
        with pytest.raises(QuotaExceeded, match="1 devices' compute"):
            made.request(client("alice"), Terms(count=2, compute=0.75), wait=100)

    def test_what_is_drawn_counts(self):
        made, book, _ = broker((8 * GIB,), quotas="*:memory=2GiB")
        one = book.open(made.admit(client("x"), 0), 0, client("x"))
        two = book.open(made.admit(client("x"), 0), 0, client("x"))
        assert made.draw(one, 2 * GIB) == 2 * GIB and made.draw(two, 1) == 0 and made.free_for(two) == 0

    @pytest.mark.parametrize(
        "text", ["alice", "alice:", "alice:memory", "alice:colour=3", "a:memory=1;a:memory=2", "a:devices=0"]
    )
    def test_nonsense(self, text):
        with pytest.raises(ValueError, match="quota|named twice"):
            parse_quotas(text)

    def test_as_it_is_written(self):
        read = parse_quotas("a:memory=1KiB,weight=2; *:devices=3")
        assert read == (Quota("a", 1024, weight=2.0), Quota("*", devices=3)) == parse_quotas(list(map(str, read)))


class TestQueue:
    def test_first_in_first_out_and_places(self):
        made, book, clock = broker()
        held = made.request(client(), Terms(memory=8 * GIB))
        first = made.request(client(), Terms(memory=8 * GIB), wait=60)
        second = made.request(client(), Terms(memory=GIB), wait=60)
        assert (first.position, second.position, second.waiting) == (1, 2, 2)
        assert [(w["position"], w["memory"]) for w, _ in made.queue()] == [(1, 8 * GIB), (2, GIB)]
        with pytest.raises(ServerBusy, match="2 others wait for these devices|can be had now"):
            made.request(client(), Terms(memory=1))
        book.end(held.id, "given back")
        assert isinstance(made.request(client(), Terms(), ticket=second.ticket), Place), "it may not pass the first"
        got = made.request(client(), Terms(), ticket=first.ticket)
        assert got.parts == {0: 8 * GIB}
        assert made.request(client(), Terms(), ticket=second.ticket) == Place(second.ticket, 1, 1)
        clock.now += 4
        made.request(client(), Terms(), ticket=second.ticket)
        clock.now += FORGOTTEN_AFTER + 0.1
        made.pump()
        assert made.queue() == [], "who asks no more is gone"

    def test_nobody_fills_it(self):
        """A look at the queue costs what there is in it: one person's requests are bounded, and so are all together."""
        made, _, clock = broker()
        made.request(client(), Terms(memory=8 * GIB))
        for _ in range(MOST_REQUESTS):
            assert isinstance(made.request(client("greedy"), Terms(memory=GIB), wait=60), Place)
        with pytest.raises(ServerBusy, match="64 requests of greedy are in the queue, of 64 in all"):
            made.request(client("greedy"), Terms(memory=GIB), wait=60)
        assert isinstance(made.request(client("other"), Terms(memory=GIB), wait=60), Place)
        for number in range(MOST_WAITING - MOST_REQUESTS - 1):
            made.request(client(str(number)), Terms(memory=GIB), wait=60)
        with pytest.raises(ServerBusy, match="no more fit"):
            made.request(client("late"), Terms(memory=GIB), wait=60)
        clock.now += FORGOTTEN_AFTER + 1
        made.pump()
        assert isinstance(made.request(client("late"), Terms(memory=GIB), wait=60), Place)

    def test_leases_without_a_part_are_bounded(self):
        """They cost their holder nothing: a loop of requests made every look at the book slow, for everybody."""
        made, book, _ = broker()
        leases = [made.request(keyed("greedy"), Terms(seconds=1e6)) for _ in range(MOST_LEASES)]
        for ask in (
            lambda: made.request(keyed("greedy"), Terms(seconds=1e6)),
            lambda: made.claim(keyed("greedy"), Terms(devices=(0,)), b"x" * 16),
        ):
            with pytest.raises(QuotaExceeded, match="greedy has 256 leases"):
                ask()
        assert made.request(keyed("other"), Terms()).client.user == "other"
        book.end(leases[0].id, "given back")
        assert made.request(keyed("greedy"), Terms())

    def test_where_nobody_waits_nothing_is_counted(self, monkeypatch):
        """The daemon looks at the queue all the time, and at other people's leases only where somebody wants some."""
        made, book, _ = broker()
        for _ in range(3):
            made.request(keyed("greedy"), Terms(seconds=1e6))
        looked = []
        monkeypatch.setattr(book, "dominant_shares", lambda: looked.append(1) or {})
        made.pump()
        assert not looked
        made.request(keyed("other"), Terms(memory=8 * GIB, seconds=9))
        assert isinstance(made.request(keyed("late"), Terms(memory=GIB), wait=60), Place)
        assert looked

    def test_some_sessions_are_kept_for_others(self):
        made, book, _ = broker((GIB, GIB), most_sessions=8)
        for _ in range(6):
            book.open(made.admit(keyed("greedy"), 0), 0, keyed("greedy"))
        with pytest.raises(QuotaExceeded, match="greedy has 6 of the 8 sessions of device 0"):
            made.admit(keyed("greedy"), 0)
        shared = made.request(keyed("greedy"), Terms(devices=(0,)))
        with pytest.raises(QuotaExceeded, match="kept for others"):
            made.check_room(shared.client, 0, [])
        assert set(made.admit(keyed("greedy"), None).parts) == {1}
        for _ in range(5):
            made.check_room(keyed("greedy"), 1, [])
            made.admit(keyed("greedy"), 1)  # their workers are starting
        with pytest.raises(QuotaExceeded):
            made.admit(keyed("greedy"), None)
        made.check_room(keyed("other"), 0, [keyed("greedy")])
        book.open(made.admit(keyed("other"), 0), 0, keyed("other"))
        with pytest.raises(NoSuchDevice):
            made.admit(keyed("greedy"), 7)

    def test_an_open_server_knows_no_persons(self):
        made, book, _ = broker(most_sessions=8)
        for _ in range(8):
            book.open(made.admit(client(), 0), 0, client())
        with pytest.raises(ServerBusy, match="already serves 8 sessions"):
            made.admit(client(), 0)

    def test_waiting_has_an_end(self):
        made, _, clock = broker()
        made.request(client(), Terms(memory=8 * GIB))
        place = made.request(client(), Terms(memory=GIB), wait=3)
        clock.now += 3
        with pytest.raises(ServerBusy, match="3 s in the queue were not enough"):
            made.request(client(), Terms(memory=GIB), ticket=place.ticket)

    def test_users_take_turns_by_what_they_hold_and_weigh(self):
        line = [Waiting(bytes([i]), user, i) for i, user in enumerate("aaabbc")]
        weights = {"a": 1.0, "b": 2.0, "c": 1.0}
        ordered = in_order(line, {"a": 0.5, "c": 3.0}, weights.__getitem__)
        assert [w.user for w in ordered] == list("babaac")
        assert [w.order for w in ordered if w.user == "a"] == [0, 1, 2]

    def test_nobody_passes_who_waits_for_the_same(self):
        wanted = [{0, 1}, {1}, {2}, {3}]
        line = [Waiting(b"%d" % i, "abcd"[i - 1], i, wanted[i - 1]) for i in range(1, 5)]
        granted = grant_in_order(line, lambda w: w.item, lambda w: w.ticket in (b"2", b"3", b"4"))
        assert [w.ticket for w in granted] == [b"3", b"4"]

    def test_a_user_at_the_quota_holds_up_nobody(self):
        made, book, _ = broker((8 * GIB,), quotas="alice:memory=2GiB")
        mine = made.request(client("alice"), Terms(memory=2 * GIB))
        waits = made.request(client("alice"), Terms(memory=GIB), wait=60)
        assert isinstance(waits, Place)
        made.request(client("bob"), Terms(memory=6 * GIB))
        book.end(mine.id, "given back")
        assert made.request(client("alice"), Terms(), ticket=waits.ticket).parts == {0: GIB}

    def test_draining(self):
        made, book, clock = broker()
        held = made.request(client(), Terms(memory=GIB))
        waits = made.request(client(), Terms(memory=8 * GIB), wait=60)
        made.drain(True, 10)
        for ask in (lambda: made.request(client(), Terms()), lambda: made.admit(client(), 0)):
            with pytest.raises(ServerDraining):
                ask()
        book.open(held, 0, client())
        assert "is drained and ends this lease in 10 s" in made.notice(held)
        book.renew(held.id)
        clock.now += 4
        assert made.overdue() == [] and isinstance(made.request(client(), Terms(), ticket=waits.ticket), Place)
        clock.now += 4
        assert isinstance(made.request(client(), Terms(), ticket=waits.ticket), Place)
        clock.now += 2
        assert made.overdue() == [(held, "the server is drained")]
        book.end(held.id, "x")
        made.pump()
        made.drain(False)
        assert made.request(client(), Terms(), ticket=waits.ticket).parts == {0: 8 * GIB}


class TestPlacement:
    ROOMS = [
        Room("a", 8, 8, sessions=0, facts={"name": "A100 40G", "labels": {"zone": "x"}}),
        Room("a", 8, 2, sessions=3, facts={"name": "A100 80G"}),
        Room("b", 8, 5, sessions=1, facts={"name": "V100", "compute_capability": [7, 0]}),
        Room("b", 8, 8, sessions=0, facts={"name": "V100"}),
        Room("b", 8, 8, sessions=9, open=False, facts={"name": "V100"}),
        Room("c", 8, 8, open=False, facts={"name": "V100", "draining": True}),
    ]

    @pytest.mark.parametrize(
        ("terms", "expected"),
        [
            (Terms(), [0]),
            (Terms(count=2), [0, 3]),
            (Terms(placement="binpack"), [1]),
            (Terms(memory=3, placement="binpack"), [2]),
            (Terms(count=2, placement="binpack"), [1, 2]),
            (Terms(count=2, placement="same-host", memory=3), [2, 3]),
            (Terms(filters=(parse_filter("name=v100"),)), [3]),
            (Terms(filters=(parse_filter("label.zone=x"),)), [0]),
            (Terms(filters=(parse_filter("capability<7.5"),)), [2]),
            (Terms(count=2, devices=(3, 1)), [3, 1]),
        ],
    )
    def test_which(self, terms, expected):
        assert choose(self.ROOMS, terms) == expected

    def test_equally_used_devices_are_the_best_connected_ones(self):
        slow, fast = [2e-3, 1e8], [5e-5, 5e9]
        told = {"a": {"b": slow, "c": fast}, "b": {"c": slow}, "c": {}}

        def rooms(**sessions):
            return [
                Room(f"{host}:1", 8, free, sessions=sessions.get(f"{host}{free}", 0),
                     facts={"host_id": host, "reach": told[host]})
                for host in "abc" for free in (7, 8)
            ]  # fmt: skip

        assert [choose(rooms(), Terms(count=n)) for n in (1, 2, 3, 4)] == [[1], [0, 1], [0, 1, 5], [0, 1, 4, 5]]
        assert choose(rooms(a7=1), Terms(count=2)) == [2, 3]  # as used first, then as near
        assert choose(rooms(a7=1, b7=1, b8=1, c8=1), Terms(count=3)) == [0, 1, 4]
        assert choose(rooms(), Terms(count=2, devices=(0, 3, 4))) == [0, 4]

    def test_what_a_worker_says_of_distances_is_checked(self):
        reach = Reach()
        for nonsense in (None, [], {"x": 1}, {"x": [1, 0]}, {"x": [-1, 1]}, {"x": ["1", 2]}, {"x" * 65: [1, 1]}):
            reach.notice(nonsense)
        assert not reach.hosts
        reach.notice({f"host{n}": [1e-3, 1e9] for n in range(200)})
        assert len(reach.hosts) == 64 and reach.hosts["host199"] == [1e-3, 1e9]

    def test_the_registry_is_told_little_and_seldom(self):
        reach = Reach()
        assert reach.outline() == {}
        reach.notice({"near": [0.000123456, 9.87654e8]})
        told = dict(reach.outline())
        assert told == {"near": [0.00012, 9.9e8]}
        reach.notice({"near": [0.00013, 9.5e8]})  # about the same
        assert reach.outline() == told
        reach.notice({"near": [0.0002, 9.5e8]})
        assert reach.outline() == {"near": [0.0002, 9.5e8]}
        reach.notice({f"host{n}": [1e-3, 1e9] for n in range(63)})
        first = dict(reach.outline())
        assert len(first) == TOLD and "near" in first
        reach.notice({f"host{n}": [1e-3, 1e9] for n in range(20)})  # in another order
        assert reach.outline() == first

    @pytest.mark.parametrize(
        ("terms", "error", "message"),
        [
            (Terms(devices=(7,)), NoSuchDevice, "no device 7 on this server; it has devices 0 to 5"),
            (Terms(count=7), NoSuchDevice, "7 devices are asked for, and there are 6"),
            (Terms(filters=(parse_filter("name=H*"),)), NoSuchDevice, "that fit name=H"),
            (Terms(memory=9), NoSuchDevice, "the largest has 8 bytes"),
            (Terms(count=4, placement="same-host"), NoSuchDevice, "no single server has 4"),
            (Terms(devices=(4,)), ServerBusy, "device 4 already serves 9 sessions"),
            (Terms(devices=(5,)), ServerBusy, "device 5 is of a server that is being drained"),
            (Terms(count=4, memory=4), ServerBusy, "4 devices, 4 bytes of each asked for, and 3 can be had now"),
            (Terms(count=3, memory=4, placement="same-host"), ServerBusy, "can be had now"),
        ],
    )
    def test_why_not(self, terms, error, message):
        with pytest.raises(error, match=message):
            choose(self.ROOMS, terms)


class TestFilters:
    FACTS = {"name": "NVIDIA A100-SXM4", "memory_total": 40 * GIB, "driver": "535.104.05", "rdma": True, "index": 2,
             "link": "tcp,ucx",
             "compute_capability": [8, 0], "cuda": "12.2", "labels": {"zone": "a"}}  # fmt: skip

    @pytest.mark.parametrize("text", ["name=*a100*", "name!=*v100*", "memory>=40GiB", "device.phy-memory<41GiB",
                                      "capability>=8", "driver>535", "server.cuda-version=12.2", "server.has-rdma=1",
                                      "device.id=2", "label.zone!=b", "link!=shm",
                                      "link=ucx", "link=tcp"])  # fmt: skip
    def test_fit(self, text):
        assert parse_filter(text).fits(self.FACTS)

    @pytest.mark.parametrize("text", ["name=a100", "memory>40GiB", "capability>8.0", "driver<=535.99", "link=shm",
                                      "link!=ucx",
                                      "label.zone=b", "label.rack=1", "rdma=no", "cuda>=12.10"])  # fmt: skip
    def test_do_not_fit(self, text):
        assert not parse_filter(text).fits(self.FACTS)

    @pytest.mark.parametrize("text", ["", "name", "colour=red", "name>=x", "memory>=much", "capability=x.y", "rdma>0"])
    def test_nonsense(self, text):
        with pytest.raises(ValueError, match="filter|fact|order|value"):
            parse_filter(text)


class Lending(RuleBasedStateMachine):
    """Whatever is asked and given back, in whatever order, no device lends more than it has and no user holds
    more than the quota; every request ends in a lease, a refusal or the queue."""

    TOTAL, FACTOR, QUOTA = 1000, 1.5, 900

    def __init__(self):
        super().__init__()
        self.broker, self.book, self.clock = broker(
            (self.TOTAL, self.TOTAL),
            self.FACTOR,
            f"*:memory={self.QUOTA},weight=1;big:weight=2;few:devices=2,compute=1.1",
            most_sessions=6,
        )
        self.tickets, self.sessions = {}, []

    users = st.sampled_from(["a", "b", "big", "few"])

    @rule(user=users, memory=st.integers(0, 1600), count=st.integers(1, 3), compute=st.sampled_from([0, 0.25, 0.6, 1]),
          wait=st.sampled_from([0, 30]), placement=st.sampled_from(["spread", "binpack", "same-host"]))  # fmt: skip
    def request(self, user, memory, count, compute, wait, placement):
        try:
            got = self.broker.request(client(user), Terms(count, memory, 0, compute, 0, (), placement), wait=wait)
        except (ServerBusy, NoSuchDevice):
            return
        if isinstance(got, Place):
            assert wait and 0 < got.position <= got.waiting
            self.tickets[got.ticket] = user

    @rule(user=users, memory=st.integers(0, 1600), compute=st.sampled_from([0, 0.25, 0.6, 1]),
          devices=st.sampled_from([(0,), (1,), (0, 1)]))  # fmt: skip
    def claim(self, user, memory, compute, devices):
        """What the registry granted is checked like anything else."""
        terms = Terms(len(devices), memory, 0, compute, devices=devices)
        try:
            got = self.broker.claim(client(user), terms, secrets.token_bytes(16))
        except (ServerBusy, NoSuchDevice):
            return
        assert tuple(sorted(got.parts)) == devices

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def ask_again(self, data):
        ticket = data.draw(st.sampled_from(sorted(self.tickets)))
        try:
            got = self.broker.request(client(self.tickets[ticket]), Terms(), ticket=ticket)
        except (ServerBusy, NoSuchDevice):
            got = None
        if not isinstance(got, Place):
            del self.tickets[ticket]

    @rule(user=users, device=st.sampled_from([None, 0, 1]))
    def session_of_its_own(self, user, device):
        try:
            own = self.broker.admit(client(user), device)
        except (ServerBusy, NoSuchDevice):
            return
        self.sessions.append(self.book.open(own, min(own.parts), client(user)))

    @precondition(lambda self: len(self.book))
    @rule(data=st.data())
    def session_of_a_lease(self, data):
        held = data.draw(st.sampled_from(list(self.book)))
        if not held.own:
            self.sessions.append(self.book.open(held, data.draw(st.sampled_from(sorted(held.parts))), held.client))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), wanted=st.integers(0, 1600))
    def draw(self, data, wanted):
        session = data.draw(st.sampled_from(self.sessions))
        before = session.drawn
        assert self.broker.draw(session, wanted) in (before, wanted)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data):
        session = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(session)
        self.book.close(session.id, "bye")

    @precondition(lambda self: len(self.book))
    @rule(data=st.data())
    def give_back(self, data):
        for session in self.book.end(data.draw(st.sampled_from(list(self.book))).id, "given back"):
            self.sessions.remove(session)

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds):
        self.clock.now += seconds
        for over, reason in self.broker.overdue():
            for session in self.book.end(over.id, reason):
                self.sessions.remove(session)
        self.broker.pump()

    @invariant()
    def no_device_lends_more_than_it_has(self):
        for device in (0, 1):
            lent = self.book.reserved(device) + self.book.drawn_from_rest(device)
            assert lent + self.book.memory_free(device) == int(self.TOTAL * self.FACTOR)
            assert sum(one.compute for one in self.book.on_device(device)) <= 1 + 1e-9

    @invariant()
    def no_lease_holds_more_than_its_part(self):
        for held in self.book:
            for device, part in held.parts.items():
                if part:
                    assert sum(s.drawn for s in held.sessions.values() if s.device == device) <= part

    @invariant()
    def no_user_holds_more_than_the_quota(self):
        for user in ("a", "b"):
            assert self.book.held(user)[0] <= self.QUOTA
        _, compute, devices = self.book.held("few")
        assert devices <= 2 and compute <= 1.1 + 1e-9


TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
