"""Who waits to look into sessions: nobody takes another's place, and nothing is kept without end."""

from rgpu.server.onlookers import Onlookers
from rgpu.wire import control


class Daemon:
    def __init__(self):
        self.answered, self.refused, self.admitted = [], [], {}
        self.onlookers = Onlookers(
            lambda asker, body: self.answered.append(asker),
            lambda asker, reason, why: self.refused.append((asker, reason, why)),
            self.tell,
        )

    def tell(self, session, message):
        self.admitted.setdefault(session, []).append(control.Control.decode(message).visit)

    def opened(self, session, number=-1):
        opened = control.Opened.encode(self.admitted[session][number], ["tcp://127.0.0.1:1"], "")
        self.onlookers.opened(session, control.Control.decode(opened))


def test_a_crowd_at_one_session_takes_no_place_at_another():
    daemon = Daemon()
    daemon.onlookers.come(b"b", "bob")
    for number in range(1000):
        daemon.onlookers.come(b"a", f"alice {number}")
    assert len(daemon.refused) == 999 and not any(asker == "bob" for asker, _, _ in daemon.refused)
    daemon.opened(b"b")
    daemon.opened(b"a", 3)  # too late
    assert daemon.answered == ["bob"]
    daemon.opened(b"a")
    assert daemon.answered == ["bob", "alice 999"]


def test_a_worker_answers_for_its_own_session_only():
    daemon = Daemon()
    daemon.onlookers.come(b"a", "alice")
    daemon.admitted[b"b"] = daemon.admitted[b"a"]
    daemon.opened(b"b")
    assert not daemon.answered


def test_who_waits_for_a_session_that_ends_is_told():
    daemon = Daemon()
    daemon.onlookers.come(b"a", "alice")
    daemon.onlookers.turn_away(b"a", "the session ended: released")
    daemon.onlookers.turn_away(b"a", "the session ended: released")
    assert daemon.refused == [("alice", "busy", "the session ended: released")]
    daemon.opened(b"a")
    assert not daemon.answered
