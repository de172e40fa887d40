"""A program that keeps one device busy, or only holds it; run as a process by tests of shares."""

PROGRAM = """
import sys, time
import rgpu as cp

a = cp.ones(200_000)
a.sum().item()
print("ready", flush=True)
if sys.argv[1] == "idle":
    sys.stdin.readline()
    sys.exit()
while True:  # until it is killed; the client waits by itself when the worker is behind
    a *= 1.0
    if sys.argv[1] == "waits":
        cp.cuda.Device().synchronize()
"""
