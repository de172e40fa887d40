"""`rgpu health`: what is right and what is not, on this machine and on every server, each with its remedy."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

HELP = "check this machine and every server of the pool"
DESCRIPTION = """Check this machine and every server of the pool: versions, libraries, drivers, keys, clocks, limits,
MTU, RDMA, MPS.

Each line begins with OK, WARN (it works, and could be better) or FAIL (it will not work), and says what to do.
Exit code 0; 1 with a FAIL (with --strict: or a WARN).
"""

OK, WARN, FAIL = "OK", "WARN", "FAIL"
OPEN_FILES = 1024
SHARED_MEMORY = 64 << 20
SKEW_SECONDS = 2.0
FAR_SECONDS = 0.005
FAST_NETWORK = 10_000  # Mb/s from which a larger MTU pays
TIMEOUT = 3.0

Entry = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    state: str
    where: str
    what: str
    remedy: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON: findings")
    parser.add_argument("--strict", action="store_true", help="exit code 1 for a WARN as well")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is not OK")


def run(options: argparse.Namespace) -> int:
    found = list(_everything())
    shown = [one for one in found if not options.quiet or one.state != OK]
    if options.json:
        print(json.dumps({"findings": [asdict(one) for one in shown]}, indent=2))
    else:
        print("\n".join([*_lines(shown), _summary(found)]))
    bad = (FAIL, WARN) if options.strict else (FAIL,)
    return int(any(one.state in bad for one in found))


def _lines(found: list[Finding]) -> Iterator[str]:
    place = None
    for one in found:
        if one.where != place:
            place = one.where
            yield place
        yield f"  {one.state:<4}  {one.what}"
        if one.remedy:
            yield f"        -> {one.remedy}"


def _summary(found: list[Finding]) -> str:
    return ", ".join(f"{sum(one.state == state for one in found)} {state}" for state in (OK, WARN, FAIL))


def _everything() -> Iterator[Finding]:
    from rgpu import config, host, registry
    from rgpu.errors import RegistryUnavailable
    from rgpu.smi import snapshot

    yield from _machine("this machine", host.facts())
    yield from _client()
    try:
        named = registry.servers(config.load_client())
    except RegistryUnavailable as error:
        yield Finding(FAIL, "registry", str(error), "start etcd and the servers, or correct RGPU_REGISTRY")
        return
    if not named:
        yield Finding(
            WARN, "this machine", "RGPU_SERVERS is not set: programs start a local server",
            "RGPU_SERVERS=host1,host2 (or [client] servers in rgpu.toml) names the hosts to use",
        )  # fmt: skip
    for server in snapshot.take(snapshot.addresses(), TIMEOUT):
        yield from check_server(server)


def _client() -> Iterator[Finding]:
    from rgpu import _native

    if _native.IMPLEMENTATION is _native.COMPILED:
        yield Finding(OK, "this machine", "the compiled core is used")
    else:
        yield Finding(
            WARN, "this machine", "the pure-Python core is used: right, and slower",
            "install a C compiler (apt install gcc) and install rgpu again",
        )  # fmt: skip


def _machine(where: str, facts: Entry) -> Iterator[Finding]:
    """What holds for a client's host and a server's alike."""
    libraries = facts.get("libraries") or {}
    versions = ", ".join(f"{name} {version}" for name, version in sorted(libraries.items()))
    yield Finding(OK, where, f"Python {facts.get('python')}, {versions}")
    files = facts.get("open_files")
    if files is not None and files < OPEN_FILES:
        yield Finding(WARN, where, f"only {files} files may be open at once", f"ulimit -n {OPEN_FILES * 4}")
    else:
        yield Finding(OK, where, f"{files or 'any number of'} files may be open at once")
    yield from _network(where, facts)
    free = facts.get("shared_memory_free")
    if free is not None and free < SHARED_MEMORY:
        yield Finding(
            WARN, where, f"/dev/shm has only {free >> 20} MiB free: the shared-memory link needs some",
            "free some, or start the container with --shm-size=1g",
        )  # fmt: skip


def _network(where: str, facts: Entry) -> Iterator[Finding]:
    for one in facts.get("interfaces") or ():
        fast = one.get("speed") or 0
        if one["mtu"] < 1500:
            yield Finding(WARN, where, f"{one['name']} has MTU {one['mtu']}", "a tunnel? 1500 or more is faster")
        elif fast >= FAST_NETWORK and one["mtu"] < 4096:
            yield Finding(
                WARN, where, f"{one['name']} does {fast // 1000} Gb/s with MTU {one['mtu']}",
                f"jumbo frames need less processor: ip link set {one['name']} mtu 9000 (on every host and switch)",
            )  # fmt: skip
        else:
            yield Finding(OK, where, f"{one['name']}: MTU {one['mtu']}" + (f", {fast} Mb/s" if fast else ""))
    rdma, locked = facts.get("rdma") or [], facts.get("locked_memory")
    if rdma and locked is not None:
        yield Finding(
            WARN, where, f"RDMA ({', '.join(rdma)}), but only {locked >> 10} KiB may be locked in memory",
            "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)",
        )  # fmt: skip
    else:
        yield Finding(OK, where, f"RDMA: {', '.join(rdma) or 'none here, TCP is used'}")


def check_server(server: Entry) -> Iterator[Finding]:
    """What one server says of itself, or why it says nothing."""
    from rgpu._version import __version__
    from rgpu.wire.version import fingerprint

    where = f"server {server['address']}"
    if not server["reachable"]:
        reason, _, remedy = server["error"].partition("; ")
        yield Finding(FAIL, where, reason, remedy)
        return
    if (server["version"], server.get("fingerprint")) == (__version__, fingerprint()):
        yield Finding(OK, where, f"{server['name']}: rgpu {server['version']}, the same protocol")
    else:
        yield Finding(
            FAIL, where, f"rgpu {server['version']} (protocol {server.get('fingerprint')}); here it is {__version__} "
            f"(protocol {fingerprint()})", "install the same version on both",
        )  # fmt: skip
    facts = server.get("facts") or {}
    yield from _distance(where, server, facts)
    yield from _machine(where, facts)
    yield from _devices(where, server, facts)
    if server.get("draining"):
        yield Finding(WARN, where, "it is draining: no new session is taken", "rgpu drain --off, when that is over")
    yield from _keys(where, server, facts)


def _keys(where: str, server: Entry, facts: Entry) -> Iterator[Finding]:
    if facts.get("keys"):
        yield Finding(OK, where, "it asks for keys, and ours fit")
    elif server["address"].startswith(("127.", "localhost", "[::1]")):
        yield Finding(OK, where, "no keys: only programs of its own host reach it")
    else:
        yield Finding(
            WARN, where, "no keys: whoever reaches it uses its devices, and everything is in clear",
            "rgpu-server init there, then rgpu token create for each person",
        )  # fmt: skip


def _distance(where: str, server: Entry, facts: Entry) -> Iterator[Finding]:
    trip = server.get("rtt") or 0.0
    far = trip > FAR_SECONDS
    yield Finding(
        WARN if far else OK, where, f"round trip {1000 * trip:.2f} ms",
        "programs that read results often will wait for it; use a nearer host, or read less often" if far else "",
    )  # fmt: skip
    if "time" in facts:
        skew = facts["time"] - time.time()
        late = abs(skew) > SKEW_SECONDS + trip
        yield Finding(
            WARN if late else OK, where, f"its clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}",
            "tokens expire at the wrong time: let both hosts use NTP (timedatectl set-ntp true)" if late else "",
        )  # fmt: skip


def _devices(where: str, server: Entry, facts: Entry) -> Iterator[Finding]:
    if not server["devices"]:
        yield Finding(FAIL, where, "it has no devices", "rgpu-server --devices cuda (or cpu:N)")
    for device in server["devices"]:
        yield _device(where, device)
    cuda = [device for device in server["devices"] if device["kind"] == "cuda"]
    if cuda:
        drivers = ", ".join(sorted({str(device.get("driver")) for device in cuda}))
        yield Finding(OK, where, f"NVIDIA driver {drivers}, CUDA {cuda[0].get('cuda')}")
        mps = facts.get("mps")
        yield Finding(
            OK if mps else WARN, where, "MPS runs" if mps else "MPS does not run: sessions on one GPU take turns",
            "" if mps else "nvidia-cuda-mps-control -d on the server, if its users may share a fault",
        )  # fmt: skip


def _device(where: str, device: Entry) -> Finding:
    name = f"device {device['index']}: {device['name']}"
    if device.get("reading_age"):
        return Finding(
            FAIL, where, f"{name} has not answered NVML for {device['reading_age']:.0f} s",
            "dmesg | grep -i xid on the server; a reset or a restart may be needed",
        )  # fmt: skip
    if device.get("ecc_uncorrected_volatile"):
        return Finding(
            WARN, where, f"{name} has {device['ecc_uncorrected_volatile']} uncorrected memory errors",
            "results may be wrong: drain it and reset the GPU (nvidia-smi -r)",
        )  # fmt: skip
    if (device.get("clocks_event_reasons") or 0) & 0x60:
        return Finding(WARN, where, f"{name} is slowed down by its temperature", "look at its cooling")
    return Finding(OK, where, f"{name}, {device['memory_total'] >> 20} MiB, {len(device['sessions'])} sessions")
