"""T27: clients that come, work, leave, die, are stopped and lose their connections, for `--soak SECONDS` (1,800 for a
night; CI takes 6). Afterwards the daemon is as it was: no memory, descriptors, sessions or workers more, and a log
without a line that nobody can explain."""

import os
import random
import re
import signal
import subprocess
import sys
import time

from tests.support.daemons import Daemon
from tests.support.faultproxy import FaultProxy
from tests.support.waiting import wait_until

CLIENT = """
import sys, time
import numpy as np
import rgpu as cp
dice = np.random.default_rng(int(sys.argv[1]))
arrays, end = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    n = int(dice.integers(1, 200))
    host = dice.random((n, n))
    a = cp.asarray(host)
    arrays.append(a @ a.T if n % 3 else cp.concatenate([a, a * 2]))
    expected = host @ host.T if n % 3 else np.concatenate([host, host * 2])
    assert np.allclose(arrays[-1].get(), expected)
    view = arrays[dice.integers(len(arrays))][::2]
    del arrays[: len(arrays) - 20]
print("end", flush=True)
"""
EXPLAINED = re.compile(rb"^$|INFO|client was gone|the worker said")


def figures(daemon):
    pid = daemon.process.pid
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd"))


class Soak:
    def __init__(self, daemon, proxy, seed):
        self.daemon, self.proxy, self.dice = daemon, proxy, random.Random(seed)
        self.running, self.count, self.ended = [], 0, 0

    def start(self):
        self.count += 1
        seconds = self.dice.uniform(0.2, 1.0)
        address = self.dice.choice([str(self.daemon.address), "{}:{}".format(*self.proxy.address)])
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(self.count), str(seconds)],
            env={**os.environ, "RGPU_SERVERS": address, "RGPU_LINK": self.dice.choice(["auto", "tcp"])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        fate = self.dice.choice(["leaves", "leaves", "dies", "stands"])
        self.running.append((client, fate, time.monotonic() + self.dice.uniform(0.3, 1.5)))

    def step(self):
        for entry in list(self.running):
            client, fate, moment = entry
            if client.poll() is None and time.monotonic() > moment and fate != "leaves":
                client.send_signal(signal.SIGKILL if fate == "dies" else signal.SIGSTOP)
                if fate == "stands":
                    time.sleep(0.2)
                    client.send_signal(signal.SIGCONT)
                    self.running[self.running.index(entry)] = (client, "leaves", 0.0)
            if client.poll() is not None:
                self.running.remove(entry)
                out, err = client.communicate()
                if fate != "dies":
                    assert (out, err, client.returncode) == (b"end\n", b"", 0), err.decode()
                    self.ended += 1
        if self.dice.random() < 0.004:
            self.proxy.reset()  # the daemon's connection: a client makes another at its next question

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while len(self.running) < 3:
                self.start()
            self.step()
            time.sleep(0.02)
        end = time.monotonic() + 30
        while self.running and time.monotonic() < end:
            self.step()
            time.sleep(0.02)
        assert not self.running


def test_nothing_piles_up(request, tmp_path):
    seed = random.SystemRandom().getrandbits(32)
    log = open(tmp_path / "log", "w+b")  # noqa: SIM115 - closed below, after the daemon
    daemon = Daemon("--grace", "1", "--prestart", "1", stderr=log)
    try:
        with FaultProxy((daemon.address.host, daemon.address.port)) as proxy:
            soak = Soak(daemon, proxy, seed)
            soak.run(2)
            settle(daemon)
            memory, files = figures(daemon)
            seconds = request.config.getoption("--soak")
            soak.run(seconds)
            settle(daemon)
            grown, more = figures(daemon)[0] - memory, figures(daemon)[1] - files
            print(
                f"seed {seed}: {soak.count} clients, {soak.ended} to their end; {grown >> 10} KiB, {more} descriptors"
            )
            assert grown < (4 << 20) + seconds * 600 and more <= 1  # 2 MiB an hour
    finally:
        for client, _, _ in soak.running:
            client.kill()
            client.communicate()
        daemon.stop()
        log.seek(0)
        lines = [line for line in log.read().splitlines() if not EXPLAINED.search(line)]
        log.close()
    assert lines == [], f"seed {seed}"


def settle(daemon):
    wait_until(lambda: not daemon.sessions() and len(daemon.workers()) == 1, timeout=20)
