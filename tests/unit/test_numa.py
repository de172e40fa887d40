"""A worker on a host with several NUMA nodes runs beside its device; the host is a folder here."""

import os
import subprocess
import sys

import pytest

from rgpu.server import numa

ONE, *MORE = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(not MORE, reason="there is one CPU to choose from")


def host(root, lists, devices=()):
    for number, text in enumerate(lists):
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text + "\n")
    for pci, node in devices:
        folder = root / f"bus/pci/devices/{pci}"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


def test_lists_of_cpus():
    assert numa.cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert numa.cpus("\n") == set()


@needs_two
def test_a_card_is_served_from_its_node(tmp_path):
    devices = [("0000:3b:00.0", 0), ("0001:5e:00.0", 1), ("0000:86:00.0", -1)]
    root = host(tmp_path, [str(ONE), str(MORE[0])], devices)
    assert numa.near(0, "00000000:3B:00.0", root) == {ONE}  # as NVML writes it
    assert numa.near(1, "0001:5E:00.0", root) == {MORE[0]}  # as CUDA does
    assert numa.near(2, "0000:86:00.0", root) == set()  # nobody knows
    assert numa.near(3, "0000:ff:00.0", root) == set()
    assert numa.near(3, "not an address", root) == set()


@needs_two
def test_devices_made_of_cpus_are_spread(tmp_path):
    root = host(tmp_path, [str(ONE), "", str(MORE[0])])  # the second node has memory only
    assert [numa.near(n, "", root) for n in range(3)] == [{ONE}, {MORE[0]}, {ONE}]


def test_what_topo_shows_of_a_device(tmp_path):
    root = host(tmp_path, [f"{ONE}"], [("0000:3b:00.0", 1), ("0000:86:00.0", -1)])
    (root / "bus/pci/devices/0000:3b:00.0/local_cpulist").write_text("0-15,32-47\n")
    (root / "devices/system/cpu").mkdir()
    (root / "devices/system/cpu/online").write_text("0-63\n")
    assert numa.beside("00000000:3B:00.0", root) == {"cpu_affinity": "0-15,32-47", "numa_affinity": 1}
    assert numa.beside("0000:86:00.0", root) == {}  # nobody knows
    assert numa.beside("None", root) == {}
    assert numa.beside("", root) == {"cpu_affinity": "0-63", "numa_affinity": 0}


def test_one_node_leaves_no_choice(tmp_path):
    assert numa.near(0, "", host(tmp_path, [f"{ONE}-{ONE + 500}"])) == set()
    assert numa.near(0, "", tmp_path / "nothing") == set()


@needs_two
def test_all_threads_move_and_later_ones_follow():
    source = f"""
import os, threading
from rgpu.server import numa
stop, ready = threading.Event(), threading.Barrier(2)
def wait():
    ready.wait(); stop.wait()
before = threading.Thread(target=wait); before.start(); ready.wait()
numa.settle(set()); assert len(os.sched_getaffinity(0)) > 1
numa.settle({{{ONE}}})
after = threading.Thread(target=wait); after.start(); ready.wait()
print({{tuple(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}} == {{({ONE},)}})
stop.set()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr
