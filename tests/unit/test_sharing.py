"""What the sessions of a device share: turns by their shares, memory asked of others before it is refused."""

import pytest

from rgpu.leases.terms import Client, Terms
from rgpu.server.broker import Broker
from rgpu.server.lease import LeaseBook
from rgpu.server.sharing import IDLE_SECONDS, SPARE_SECONDS, SPILL_SECONDS, Sharing
from rgpu.wire import control

MIB = 1 << 20
TOTAL = 100 * MIB


class Host:
    """One device, its book, and what the workers were told."""

    def __init__(self, factor=1.0, total=TOTAL):
        self.now, self.told = 10.0, []
        self.book = LeaseBook(lambda: self.now, [total], factor=factor)
        self.broker = Broker(self.book, [{"memory_total": total}], lambda device: 0.0)
        self.sharing = Sharing(self.book, self.broker, ["cpu"], self._tell)

    def _tell(self, session, message):
        self.told.append((session, control.Control.decode(message)))

    def session(self, compute=0.0, memory=0, user="u"):
        client = Client(user, "h", 1, "p")
        if compute or memory:
            lease = self.broker.request(client, Terms(memory=memory, compute=compute))
        else:
            lease = self.broker.admit(client, 0)
        session = self.book.open(lease, 0, client)
        self.turns = self.sharing.joined(session)
        return session

    def draw(self, session, memory, resident=0, answer=True):
        message = control.Control.decode(control.Draw.encode(memory=memory, resident=resident, answer=answer))
        self.sharing.drew(session, message)

    def heard(self, session, kind):
        return [message for who, message in self.told if who == session.id and isinstance(message, kind.Record)]

    def leave(self, session):
        self.book.close(session.id, "bye")
        self.sharing.left(session)


@pytest.fixture
def host():
    return Host()


def test_without_shares_nobody_takes_turns(host):
    first, second = host.session(), host.session()
    assert not host.turns and not host.heard(first, control.Turns)
    host.sharing.wanted(second)
    assert host.told == []


def test_the_first_share_makes_all_take_turns_and_its_end_ends_them(host):
    plain, shared = host.session(), host.session(compute=0.5)
    assert host.turns and [m.on for m in host.heard(plain, control.Turns)] == [True]
    assert not host.heard(shared, control.Turns)  # it begins that way
    host.sharing.wanted(plain)
    assert [m.seconds for m in host.heard(plain, control.Turn)] == [0.0]
    host.sharing.wanted(shared)
    assert host.heard(plain, control.Turn)[-1].seconds > 0
    host.now += 0.1
    host.sharing.yielded(plain, 0.1, False)
    assert host.heard(shared, control.Turn)
    host.leave(shared)
    assert [m.on for m in host.heard(plain, control.Turns)] == [True, False]


def test_a_whole_device_is_no_share(host):
    host.session(compute=1.0)
    assert not host.turns


def test_memory_is_drawn_while_there_is_some(host):
    session = host.session()
    host.draw(session, 10 * MIB)
    (credit,) = host.heard(session, control.Credit)
    assert 10 * MIB <= credit.memory <= 10 * MIB + TOTAL // 64 and credit.memory + credit.free == TOTAL


def test_what_others_do_not_use_is_asked_of_them_first(host):
    greedy, needy = host.session(), host.session()
    host.draw(greedy, 90 * MIB)
    host.draw(needy, 50 * MIB)
    assert host.heard(greedy, control.Spare) and not host.heard(needy, control.Credit)
    host.draw(greedy, 20 * MIB, answer=False)  # it gives up what it does not use
    assert host.heard(needy, control.Credit)[0].memory >= 50 * MIB


def test_when_others_keep_what_they_have_it_is_refused_in_time(host):
    greedy, needy = host.session(), host.session()
    host.draw(greedy, 90 * MIB)
    host.draw(needy, 50 * MIB)
    assert 0 < host.sharing.tick() <= SPARE_SECONDS and not host.heard(needy, control.Credit)
    host.now += SPARE_SECONDS
    host.sharing.tick()
    assert host.heard(needy, control.Credit)[0].memory < 50 * MIB
    host.sharing.tick()
    assert len(host.heard(needy, control.Credit)) == 1


def test_when_all_have_answered_nobody_waits_longer(host):
    greedy, needy = host.session(), host.session()
    host.draw(greedy, 90 * MIB)
    host.draw(needy, 50 * MIB)
    host.draw(greedy, 90 * MIB, answer=False)  # it uses all of it
    assert host.heard(needy, control.Credit)[0].memory < 50 * MIB


def test_when_the_one_that_was_asked_ends_its_memory_is_there(host):
    greedy, needy = host.session(), host.session()
    host.draw(greedy, 90 * MIB)
    host.draw(needy, 50 * MIB)
    host.leave(greedy)
    assert host.heard(needy, control.Credit)[0].memory >= 50 * MIB


def test_parts_that_were_set_aside_are_never_asked_for(host):
    leased, needy = host.session(memory=60 * MIB), host.session()
    host.draw(leased, MIB)
    host.draw(needy, 50 * MIB)
    assert not host.heard(leased, control.Spare)
    assert host.heard(needy, control.Credit)[0].memory < 50 * MIB  # at once: nobody could help


class TestOversubscription:
    def test_device_memory_is_asked_of_idle_sessions_first(self):
        host = Host(factor=3.0)
        idle, busy, needy = host.session(), host.session(), host.session()
        host.draw(idle, 40 * MIB, 40 * MIB)
        host.draw(busy, 40 * MIB, 40 * MIB)
        host.now += 2 * IDLE_SECONDS
        host.sharing.active(busy)
        host.draw(needy, 50 * MIB, 50 * MIB)
        assert [m.resident for m in host.heard(idle, control.Spare)] == [30 * MIB]
        assert not host.heard(busy, control.Spare)
        host.draw(idle, 40 * MIB, 10 * MIB, answer=False)
        assert host.heard(needy, control.Credit)[0].resident == 50 * MIB

    def test_those_at_work_keep_an_equal_part(self):
        host = Host(factor=3.0)
        busy, needy = host.session(), host.session()
        host.draw(busy, 100 * MIB, 100 * MIB)
        assert host.sharing.victims(needy, 90 * MIB) == [(busy, 50 * MIB)]

    def test_spilling_has_more_time_and_an_end(self):
        host = Host(factor=3.0)
        other, needy = host.session(), host.session()
        host.draw(other, 100 * MIB, 100 * MIB)
        host.draw(needy, 50 * MIB, 50 * MIB)
        host.now += SPARE_SECONDS
        host.sharing.tick()
        assert not host.heard(needy, control.Credit)
        host.now += SPILL_SECONDS
        host.sharing.tick()
        (credit,) = host.heard(needy, control.Credit)
        assert credit.memory >= 50 * MIB and credit.resident == 0
