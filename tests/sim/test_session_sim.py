"""Two sessions in virtual time over a link that does everything a link may do. No sockets, no sleeps.

One connection keeps order, as TCP does; a break loses any tail of what was under way, and what
survives may arrive late, twice, and after newer messages of the next connection. Breaks are announced
or silent. Clocks jump, ends pause, and crash: a new epoch begins while messages of the old one are under way.
Replay one seed: ``python -m tests.sim.test_session_sim SEED``; many, with the time they took: ``... 0-9999``.
"""

import os
import random
import sys
import time
import traceback

import pytest

from rgpu.session.session import Session

SEEDS = int(os.environ.get("RGPU_SIM_SEEDS", "2000"))
STEPS = 120
SID = bytes(16)


class End:
    """One end: its session, a clock that may jump, what it sent, got and executed."""

    def __init__(self, world, name):
        self.name, self.skew, self.paused_until = name, 0.0, 0.0
        self.begin(world)

    def begin(self, world):
        """A new life, in the world's epoch."""
        self.session = Session(
            SID,
            world.epoch,
            clock=lambda: world.now + self.skew,
            window_messages=world.window,
            window_bytes=4000,
        )
        self.sent, self.got, self.executed = [], [], 0
        self.stale = 0  # messages of an older epoch that came


class World:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now, self.epoch, self.crashes = 100.0, 7, 0
        self.window = self.rng.choice([1, 2, 8, 32])
        self.ends = [End(self, "a"), End(self, "b")]
        self.flight = []  # [arrival, order, connection, to, frames]
        self.order = 0
        self.connection = 0
        self.last_arrival = [0.0, 0.0]
        self.latency = self.rng.choice([0.0, 0.001, 0.05, 0.4])

    # What the link does

    def transmit(self, sender, message):
        to = 1 - sender
        delay = self.latency * (1 + self.rng.random())
        self.last_arrival[to] = max(self.last_arrival[to], self.now + delay)  # in order
        self.order += 1
        self.flight.append([self.last_arrival[to], self.order, self.connection, to, message, self.epoch])

    def crash(self):
        """One end is gone, and with it the epoch. What each could not confirm is all that may have been executed
        without its knowledge: that is what a client is told (OutcomeUnknown)."""
        for end, peer in (self.ends, self.ends[::-1]):
            sent, _, done = end.session.progress
            if not done <= peer.executed <= len(peer.got) <= sent == len(end.sent):
                raise AssertionError(f"{end.name} believes {done} of {sent} done, {peer.name} executed {peer.executed}")
            if peer.got != end.sent[: len(peer.got)]:
                raise AssertionError(f"{peer.name} got what {end.name} did not send")
        self.epoch += 1
        self.crashes += 1
        for end in self.ends:
            end.begin(self)
            end.session.link_up()

    def break_link(self):
        """Lose a tail in each direction; let some of the rest come late or twice."""
        rng = self.rng
        kept = []
        for to in (0, 1):
            mine = [m for m in self.flight if m[3] == to]
            kept += mine[: rng.randint(0, len(mine))]
        late = rng.choice([0.0, 0.0, 0.3, 3.0])
        for message in kept:
            message[0] += late
        for message in rng.sample(kept, min(len(kept), rng.choice([0, 0, 1, 3]))):
            self.order += 1
            kept.append([message[0] + rng.random(), self.order, *message[2:]])
        self.flight = kept
        self.connection += 1
        self.last_arrival = [self.now, self.now]
        for end in self.ends:
            style = rng.choice(["announced", "announced", "late", "silent"])
            if style != "silent":
                end.session.link_down()
            if style == "announced":
                end.session.link_up()

    def deliver(self):
        due = sorted((m for m in self.flight if m[0] <= self.now), key=lambda m: (m[0], m[1]))
        if due:
            self.flight = [m for m in self.flight if m[0] > self.now]
        for message in due:
            end = self.ends[message[3]]
            payload = end.session.receive(message[4])
            if message[5] != self.epoch:
                end.stale += 1
                if payload is not None:
                    raise AssertionError(f"{end.name} took a message of epoch {message[5]} in {self.epoch}")
            elif payload is not None:
                end.got.append(payload[0])

    # What the ends do

    def act(self, index, busy):
        end, rng = self.ends[index], self.rng
        session = end.session
        if self.now < end.paused_until:
            return
        for _ in range(rng.choice([0, 1, 1, 5]) if busy else 0):
            size = rng.choice([1, 10, 1000])
            if session.can_send(size):
                frame = b"%d/%d " % (self.epoch, len(end.sent))
                frame += bytes(max(0, size - len(frame)))
                end.sent.append(frame)
                message = session.send([frame])
                if message is not None:
                    self.transmit(index, message)
        pending = len(end.got) - end.executed
        if pending:
            done = rng.randint(0, pending) if busy else pending
            if done:
                end.executed += done
                session.mark_done(done)
        for message in session.outgoing(self.now + end.skew):
            self.transmit(index, message)

    def check(self):
        for end, peer in (self.ends, self.ends[::-1]):
            session = end.session
            count = len(peer.got)
            if peer.got[-1:] != end.sent[count - 1 : count] or count > len(end.sent):
                raise AssertionError(f"{peer.name} got what {end.name} did not send next")
            messages, nbytes = session.unfinished
            if messages > self.window or (nbytes > 4000 and messages > 1):
                raise AssertionError(f"{end.name}'s window is exceeded: {session.unfinished}")
            if session.unacked > session.unfinished or session.refused != end.stale:
                raise AssertionError(f"{session!r} {session.unacked} {session.refusal}")

    def step(self, busy=True):
        rng = self.rng
        self.now += rng.choice([0.0005, 0.005, 0.05, 0.3])
        if busy:
            chance = rng.random()
            if chance < 0.03:
                self.break_link()
            elif chance < 0.05:
                rng.choice(self.ends).skew += rng.choice([-3600.0, -0.5, 0.5, 3600.0])
            elif chance < 0.07:
                rng.choice(self.ends).paused_until = self.now + rng.choice([0.1, 2.0])
            elif chance < 0.12:
                rng.choice(self.ends).session.link_up()
            elif chance < 0.125:
                self.crash()
        self.deliver()
        for index in rng.sample([0, 1], 2):
            self.act(index, busy)
        self.check()

    def run(self):
        for _ in range(STEPS):
            self.step()
        for end in self.ends:  # healed: the connection holds from now on
            end.session.link_up()
        healed = self.now
        while any(end.session.unfinished[0] for end in self.ends):
            self.step(busy=False)
            if self.now - healed > 60:
                raise AssertionError(f"not all delivered 60 s after healing: {self.ends[0].session!r}")
        for end, peer in (self.ends, self.ends[::-1]):
            if peer.got != end.sent or peer.executed != len(end.sent):
                raise AssertionError(f"{peer.name} has {len(peer.got)} of {len(end.sent)} messages")


def failing(seeds):
    """One line for each seed that fails."""
    lines = []
    for seed in seeds:
        try:
            World(seed).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what counts
            lines.append(f"python -m tests.sim.test_session_sim {seed}  # {type(error).__name__}: {error}")
            if len(lines) == 5:
                break
    return lines


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", range(4))
def test_exactly_once_in_order_and_everything_arrives(part):
    lines = failing(range(part, SEEDS, 4))
    assert not lines, "\n".join(lines)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if "-" in argument:
            first, last = map(int, argument.split("-"))
            began = time.process_time()
            lines = failing(range(first, last + 1))
            took = time.process_time() - began
            print("\n".join(lines) or f"{last + 1 - first} seeds, nothing wrong", f"({took:.1f} s)")
            continue
        try:
            World(int(argument)).run()
        except Exception:  # noqa: BLE001
            traceback.print_exc()
