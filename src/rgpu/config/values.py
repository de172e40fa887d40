"""What settings are made of: addresses, devices, quotas, and how text becomes a value.

Each ``parse_`` raises ValueError with a sentence that says what would be right. Pure, but for names of hosts and
folders that must be there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable
from typing import Any

from rgpu.record import Record

DEFAULT_PORT = 47800
ETCD_PORT = 2379
LOCAL = "local"  # in a list of servers: the devices of this machine, served by an embedded daemon
PLACEMENTS = ("spread", "binpack", "same-host")
"""spread: the least used devices; binpack: the fullest that still have room; same-host: all on one server."""
LOG_LEVELS = ("debug", "info", "warning", "error")

_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt]?)(?:i?b)?)", re.IGNORECASE)


def parse_bytes(value: Any) -> int:
    """``4G``, ``512 MiB``, ``1.5gb`` (all powers of 1024) or a plain number of bytes."""
    if type(value) is int and value >= 0:
        return value
    match = _BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError("an amount of memory looks like 4G, 512MiB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def parse_seconds(value: Any) -> float:
    """``8``, ``8s`` or ``500ms``."""
    try:
        if isinstance(value, str):
            text = value.strip().lower()
            seconds = float(text[:-2]) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))
        else:
            seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(value, bool) or not 0 < seconds < 1e9:
        raise ValueError("a time looks like 8, 8s or 500ms and is greater than 0")
    return seconds


def parse_share(value: Any) -> float:
    """``0.25``, ``25%``; above 0, at most 1."""
    try:
        text = str(value).strip()
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ValueError("a share of a device looks like 0.25 or 25%, above 0 and at most 1")
    return share


def parse_duration(value: Any) -> float:
    """``90``, ``90s``, ``30m``, ``2h``, ``1d``: seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or not match or match[2] not in _TIMES or not 0 < float(match[1]) < 1e9:
        raise ValueError("a duration looks like 90s, 30m, 2h or 1d")
    return float(match[1]) * _TIMES[match[2]]


def parse_factor(value: Any) -> float:
    """How many times what there is may be lent: 1 or more."""
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = 0.0
    if isinstance(value, bool) or not 1 <= factor <= 1000:
        raise ValueError("a factor is 1 (no more than there is), 2, 1.5, ...")
    return factor


def parse_directory(value: Any) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or not os.path.isdir(value):
        raise ValueError("the absolute path of a directory that is there is needed")
    return value


def parse_directories(value: Any) -> tuple[str, ...]:
    """A list, or one text with the separator of ``PATH``."""
    return tuple(map(parse_directory, value.split(os.pathsep) if isinstance(value, str) else value or ()))


def parse_texts(value: Any) -> tuple[str, ...]:
    """A list, or one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of texts is needed")
    return tuple(part.strip() for part in parts if part.strip())


def parse_labels(value: Any) -> tuple[tuple[str, str], ...]:
    """``zone=a,team=ml``."""
    if isinstance(value, dict):
        value = [f"{name}={text}" for name, text in value.items()]
    parts = [part.partition("=") for part in parse_texts(value)]
    if not all(name and equals and text for name, equals, text in parts) or len({p[0] for p in parts}) < len(parts):
        raise ValueError("labels look like zone=a,team=ml, each name once")
    return tuple((name, text) for name, _, text in parts)


def parse_placement(value: Any) -> str:
    if value not in PLACEMENTS:
        raise ValueError(f"one of {', '.join(PLACEMENTS)} is needed")
    return value


def parse_part(value: Any) -> str:
    """An amount of memory, or a part of what a device has (``0.5``, ``50%``). Kept as it is written."""
    text = str(value).strip()
    try:
        parse_share(text) if "." in text and text.replace(".", "").isdecimal() or "%" in text else parse_bytes(text)
    except ValueError:
        raise ValueError("memory of a device looks like 8GiB, 512MiB, 0.5 or 50%") from None
    return text


def parse_registry(value: Any) -> str:
    """``etcd://host1:2379,host2:2379``"""
    text = str(value).strip()
    try:
        registry_members(text)
    except ValueError:
        raise ValueError("a registry looks like etcd://host1:2379,host2:2379") from None
    return text


def registry_members(text: str) -> tuple[Address, ...]:
    """Where the members of an etcd are; ValueError when the text names none."""
    scheme, _, members = text.partition("://")
    if scheme != "etcd":
        raise ValueError("not an etcd")
    return tuple(parse_address(member, ETCD_PORT) for member in members.split(","))


def parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("a switch is 0 or 1")


def parse_count(value: Any) -> int:
    try:
        count = -1 if isinstance(value, (bool, float)) else int(value)
    except (TypeError, ValueError):
        count = -1
    if not 0 <= count < 1 << 31:
        raise ValueError("a number that is 0 or more is needed")
    return count


def parse_visible(value: Any) -> tuple[str, ...]:
    """``0,2`` or UUIDs (or their beginnings), as CUDA_VISIBLE_DEVICES has them: the order is the program's. What
    follows an entry that names no device is not seen, so ``-1`` shows none."""
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, (str, bytes)) or not all(isinstance(part, (str, int)) for part in parts):
        raise ValueError("visible devices look like 0,2 (numbers of the pool) or GPU-3f8a...,MIG-...")
    return tuple(str(part).strip() for part in parts)


def parse_redundancy(value: Any) -> int:
    if (count := parse_count(value)) not in (1, 2):
        raise ValueError("1 (each device is one worker) or 2 (two workers on two servers)")
    return count


def parse_port(value: Any) -> int:
    port = parse_count(value)
    if port > 65535:
        raise ValueError("a port is between 0 and 65535")
    return port


def parse_ports(value: Any) -> tuple[int, int]:
    """``47900-47999``: the first and the last port."""
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", str(value).strip())
    if not match or not 0 < int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError("a range of ports looks like 47900-47999")
    return int(match[1]), int(match[2])


def parse_name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isprintable():
        raise ValueError("a text of 1 to 64 printable characters is needed")
    return value


def parse_data(value: Any) -> str:
    """Whether data are encrypted on servers with keys."""
    if value not in ("sealed", "clear"):
        raise ValueError("sealed or clear is needed")
    return value


def parse_choice(value: Any) -> str:
    """Whether something is done, or is done where it pays."""
    if value not in ("auto", "on", "off"):
        raise ValueError("auto, on or off is needed")
    return value


def parse_path(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 4096 or not value.isprintable():
        raise ValueError("the path of a file is needed")
    return value


def parse_profile(value: Any) -> str:
    """A switch, or the file (in a folder: one for each process) that gets the profile as JSON."""
    try:
        return "1" if parse_flag(value) else ""
    except ValueError:
        return parse_path(value)


LINKS = ("shm", "ucx", "tcp", "zmq")


def parse_link(value: Any) -> str:
    """``tcp``, ``shm``, ... or the scheme of a link that an installed package adds."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9+.-]{0,31}", value.strip().lower()):
        raise ValueError(f"a link is one of {', '.join(LINKS)}")
    return value.strip().lower()


def parse_links(value: Any) -> tuple[str, ...]:
    """``shm,tcp``: kinds of links, each once."""
    links = tuple(map(parse_link, value.split(",") if isinstance(value, str) else value))
    if not links or len(set(links)) != len(links):
        raise ValueError("links look like shm,tcp (each once)")
    return links


def parse_level(value: Any) -> str:
    level = str(value).lower()
    if level not in LOG_LEVELS:
        raise ValueError(f"one of {', '.join(LOG_LEVELS)} is needed")
    return level


class Address(Record):
    """Where a daemon listens."""

    host: str
    port: int
    own: bool = False  # a daemon that a program of this user started for itself; not compared

    def _values(self) -> tuple:
        return self.host, self.port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def uri(self) -> str:
        return f"tcp://{self}"


def parse_address(value: Any, port: int = DEFAULT_PORT) -> Address:
    """``host``, ``host:port``, ``tcp://host:port``, ``[::1]:port``."""
    text = value.strip().removeprefix("tcp://") if isinstance(value, str) else ""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:/\[\],]+))(?::([0-9]{1,5}))?", text)
    if not match or int(match[3] or 0) > 65535:
        raise ValueError(f"a server looks like gpuhost:{DEFAULT_PORT}, 10.0.0.7 or [::1]:{DEFAULT_PORT}")
    return Address(match[1] or match[2], int(match[3] or port))


def parse_advertised(value: Any) -> Address:
    """An address as above; port 0, and none: the one that the server listens on."""
    return parse_address(value, 0)


def parse_http(value: Any) -> Address:
    """``9400`` (on loopback), ``host:9400`` or ``[::1]:9400``; port 0 takes any free one."""
    text = str(value).strip()
    if text.isdecimal():
        return Address("127.0.0.1", parse_port(text))
    if not re.fullmatch(r"\S+:[0-9]+", text):
        raise ValueError("an address for HTTP looks like 9400 or 127.0.0.1:9400")
    return parse_address(text)


def is_loopback(host: str) -> bool:
    """Whether nothing but this host reaches a socket bound there; OSError for what is no address."""
    import ipaddress

    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def parse_servers(value: Any) -> tuple[Address | str, ...]:
    """A comma-separated text or a list; ``local`` stands for this machine."""
    entries: Iterable[Any] = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)) or not all(isinstance(e, (str, Address)) for e in entries):
        raise ValueError(f"servers look like host1:{DEFAULT_PORT},host2:{DEFAULT_PORT}")
    servers: list[Address | str] = []
    for entry in entries:
        if isinstance(entry, str) and not entry.strip():
            continue
        server = entry if isinstance(entry, Address) else entry.strip()
        server = LOCAL if server == LOCAL else server if isinstance(server, Address) else parse_address(server)
        if server in servers:
            raise ValueError(f"{server} is listed twice")
        servers.append(server)
    return tuple(servers)


class DeviceSpec(Record):
    """What ``--devices`` asks for: so many cpu devices, or CUDA devices (None: all there are)."""

    kind: str  # "cpu", "sim", "cuda" or "auto"
    count: int = 0
    indices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.kind in ("cpu", "sim"):
            return f"{self.kind}:{self.count}"
        return self.kind + (":" + ",".join(map(str, self.indices)) if self.indices else "")


def parse_devices(value: Any) -> DeviceSpec:
    """``cpu``, ``cpu:4``, ``cuda``, ``cuda:0,2``, ``auto`` (all CUDA devices, else one cpu device) or ``sim:4``
    (simulated: docs/scale.md)."""
    text = str(value).strip().lower()
    kind, colon, rest = text.partition(":")
    if kind in ("cpu", "sim") and re.fullmatch(r"[0-9]{1,4}", rest or ("" if colon else "1")):
        if 1 <= int(rest or 1) <= 1024:
            return DeviceSpec(kind, int(rest or 1))
    elif kind == "cuda" and not colon:
        return DeviceSpec("cuda")
    elif kind == "cuda" and re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", rest):
        indices = tuple(map(int, rest.split(",")))
        if len(set(indices)) == len(indices):
            return DeviceSpec("cuda", indices=indices)
    elif text == "auto":
        return DeviceSpec("auto")
    raise ValueError("devices look like cpu:2, cuda, cuda:0,1 or auto")


class Quota(Record):
    """What one user may hold at once over all devices of a server (0: no bound), and the user's weight."""

    user: str
    memory: int = 0
    compute: float = 0.0
    devices: int = 0
    weight: float = 1.0

    def __str__(self) -> str:
        parts = [f"{k}={getattr(self, k):g}" for k in ("compute", "devices", "weight") if getattr(self, k)]
        return f"{self.user}:" + ",".join([f"memory={self.memory}"] * bool(self.memory) + parts)


def parse_quotas(value: Any) -> tuple[Quota, ...]:
    """``alice:memory=8GiB,compute=1,devices=2,weight=2; *:memory=4GiB`` or a list of such entries."""
    entries = value.split(";") if isinstance(value, str) else list(value)
    quotas = tuple(entry if isinstance(entry, Quota) else _quota(entry) for entry in entries if str(entry).strip())
    if len({quota.user for quota in quotas}) < len(quotas):
        raise ValueError("a user is named twice")
    return quotas


def _quota(text: str) -> Quota:
    user, colon, rest = text.strip().partition(":")
    values: dict[str, Any] = {}
    kinds: dict[str, Callable[[str], Any]] = {"memory": parse_bytes, "compute": float, "devices": int, "weight": float}
    for part in rest.split(",") if colon and user else ():
        name, equals, amount = part.strip().partition("=")
        if name not in kinds or not equals or name in values:
            values = {}
            break
        values[name] = kinds[name](amount)
        if not values[name] > 0:
            raise ValueError(f"{name} of a quota is above 0")
    if not values:
        raise ValueError("a quota looks like alice:memory=8GiB,compute=1,devices=2,weight=2 (or *:... for all others)")
    return Quota(user, **values)
