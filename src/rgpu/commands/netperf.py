"""`rgpu netperf`: how fast the way to each server is, and how much of what the network could do that is."""

from __future__ import annotations

import argparse
import ipaddress
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rgpu.commands import rawtcp

HELP = "measure round trip, operations and bandwidth to each server"
DESCRIPTION = """Measure the way to each server of the pool, with a session of its own on one device:
the round trip (reading 8 bytes back), small operations a second, and the bandwidth to and from the device. Beside
it what plain TCP does on the same way: for a server on this host by itself, for another one with

  gpuhost$ rgpu netperf --serve 47799
  laptop$  rgpu netperf --against 47799
"""

Entry = dict[str, Any]
SMALL = 64  # elements of a small operation's arrays


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seconds", metavar="S", type=_seconds, default=1.0, help="for each measurement (default: 1)")
    add("--size", metavar="BYTES", type=_size, default=64 << 20, help="of the arrays that are moved (default: 64MiB)")
    add("--json", action="store_true", help="print JSON: servers")
    add("--against", metavar="PORT", type=_port, help="where `rgpu netperf --serve` listens on the servers' hosts")
    add("--serve", metavar="PORT", type=_port, help="be the plain TCP peer for others, on all addresses, until Ctrl-C")


def _parsed(parse: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        from rgpu import config

        try:
            return getattr(config, parse)(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


_seconds, _size, _port = _parsed("parse_seconds"), _parsed("parse_bytes"), _parsed("parse_port")


def run(options: argparse.Namespace) -> int:
    if options.serve is not None:
        rawtcp.serve("0.0.0.0", options.serve)
        return 0
    from rgpu import config, registry

    found, code = [], 0
    for server in registry.servers(config.load_client()) or (config.LOCAL,):
        entry = _server(server, options)
        found.append(entry)
        code = code or int("error" in entry)
        if not options.json:
            print("\n".join(_lines(entry)), flush=True)
    if options.json:
        print(json.dumps({"servers": found}, indent=2))
    return code


def _server(server: Any, options: argparse.Namespace) -> Entry:
    """The measurements of one server, or why there are none."""
    import rgpu as cp
    from rgpu.errors import RgpuError

    entry: Entry = {"address": str(server)}
    try:
        pool = cp.connect(str(server))
        device = pool.devices[0]
        entry |= {"device": device.name, "link": _link(device)}
        entry |= {"rgpu": _session(cp, options.seconds, options.size)}
    except (RgpuError, MemoryError) as error:
        return entry | {"error": str(error), "reason": getattr(error, "reason", "failed")}
    entry["tcp"] = _plain_tcp(device.daemon.address, options)
    return entry


def _link(device: Any) -> str:
    return device.stream.connection.link.kind


def _session(cp: Any, seconds: float, size: int) -> Entry:
    """What a program sees: seconds, operations and bytes a second."""
    import numpy as np

    number = cp.zeros(1)
    small, host = cp.ones(SMALL), np.ones(size // 8)
    trips = _times(lambda: number.get(), seconds)
    return {
        "rtt": trips[len(trips) // 2],
        "rtt_p99": trips[len(trips) * 99 // 100],
        "operations": _operations(cp, small, seconds),
        "up": size / min(_times(lambda: _upload(cp, host), seconds)),
        "down": size / min(_download(cp.asarray(host), seconds)),
    }


def _times(action: Callable[[], Any], seconds: float) -> list[float]:
    """Sorted times of an action, at least three, after one that does not count."""
    action()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or len(times) < 3:
        action()
        times.append(time.perf_counter() - began)
    return sorted(times)


def _upload(cp: Any, host: Any) -> None:
    cp.asarray(host)
    cp.cuda.Device().synchronize()


def _download(array: Any, seconds: float) -> list[float]:
    import numpy as np

    room = np.empty(array.shape)  # memory of its own, touched once: page faults are not the link's
    return _times(lambda: array.get(out=room), seconds)


def _operations(cp: Any, small: Any, seconds: float) -> float:
    """Additions issued and executed, a second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(200):
            small + small
        count += 200
    cp.cuda.Device().synchronize()
    return count / (time.perf_counter() - began)


def _plain_tcp(address: Any, options: argparse.Namespace) -> Entry | None:
    """What a plain connection does on the same way; None where there is nothing to measure against."""
    try:
        if options.against is not None:
            return rawtcp.measure(address.host, options.against, options.seconds)
        if _is_here(address.host):
            with _peer() as port:
                return rawtcp.measure("127.0.0.1", port, options.seconds)
    except OSError as error:
        print(f"rgpu: no plain TCP to compare with: {error}", file=sys.stderr)
    return None


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _peer() -> Iterator[int]:
    command = [sys.executable, "-P", "-m", "rgpu.commands.rawtcp", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _lines(entry: Entry) -> Iterator[str]:
    if "error" in entry:
        yield f"{entry['address']}: {entry['error']}"
        return
    mine, tcp = entry["rgpu"], entry["tcp"]
    yield f"{entry['address']}: {entry['device']}, link {entry['link']}"
    trip = f"{1e6 * mine['rtt']:.0f} us (99 %: {1e6 * mine['rtt_p99']:.0f} us)"
    yield _line("round trip", trip, tcp and f"{1e6 * tcp['rtt']:.0f} us", tcp and tcp["rtt"] / mine["rtt"])
    yield _line("small operations", f"{mine['operations'] / 1e3:.0f} k/s", None, None)
    for name, key in (("to the device", "up"), ("from the device", "down")):
        beside = tcp and f"{tcp[key] / 1e9:.2f} GB/s"
        yield _line(name, f"{mine[key] / 1e9:.2f} GB/s", beside, tcp and mine[key] / tcp[key])
    if tcp is None:
        yield "  (plain TCP is not known: run `rgpu netperf --serve 47799` there, and --against 47799 here)"


def _line(name: str, mine: str, tcp: str | None, share: float | None) -> str:
    beside = f"   plain TCP {tcp}: {100 * share:.0f} % of it" if tcp and share else ""
    return f"  {name:<17} {mine:<28}{beside}".rstrip()
