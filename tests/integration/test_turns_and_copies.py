"""Two programs with shares of the same two devices copy between them in opposite directions: a worker that waits for
another one lets go of its turn, or the two wait for each other for ever."""

import os
import subprocess
import sys

from tests.support.servers import Server

PROGRAM = """
import sys, time, warnings
import rgpu as cp
warnings.simplefilter("ignore")
here, there = (0, 1) if sys.argv[1] == "up" else (1, 0)
cp.connect(sys.argv[2], gpus=2, memory="64MiB", compute=0.5)
with cp.cuda.Device(here):
    x = cp.ones(1 << 16)
with cp.cuda.Device(there):
    y = cp.zeros(1 << 16)
rounds, worst, end = 0, 0.0, time.monotonic() + 4
while time.monotonic() < end or rounds < 5:
    began = time.monotonic()
    with cp.cuda.Device(here):
        for _ in range(3):
            x *= 1
    with cp.cuda.Device(there):
        cp.copyto(y, x)
        y += 1
    cp.cuda.Device(there).synchronize()
    rounds, worst = rounds + 1, max(worst, time.monotonic() - began)
assert float(y.sum()) == 2 << 16
print(rounds, worst)
"""


def test_copies_in_opposite_directions_do_not_wait_for_each_other():
    with Server("cpu:2", "shared", "--device-memory", "256MiB") as server:
        programs = [
            subprocess.Popen([sys.executable, "-c", PROGRAM, way, server.address], stdout=subprocess.PIPE, text=True,
                             env=os.environ | {"RGPU_SERVERS": ""})
            for way in ("up", "down")
        ]  # fmt: skip
        try:
            for one in programs:
                rounds, worst = one.communicate(timeout=90)[0].split()
                assert one.returncode == 0 and int(rounds) >= 5 and float(worst) < 8
        finally:
            for one in programs:
                one.kill()
                one.wait()
                one.stdout.close()
