"""Settings: the only room that reads the environment and rgpu.toml.

A setting is a field of a frozen dataclass; its metadata say how text becomes a value and which
variable carries it. What counts, in this order: arguments, environment, ./rgpu.toml,
~/.config/rgpu/config.toml, /etc/rgpu/config.toml. A name or value without a meaning is a
ConfigError that names it and where it stands, never a silent default. What only some settings need
is imported where they are read: every command starts with this module.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rgpu.errors import ConfigError

DEFAULT_PORT = 47800
ETCD_PORT = 2379
LOCAL = "local"  # in a list of servers: the devices of this machine, served by an embedded daemon
NATIVE_KERNELS = "RGPU_NATIVE_KERNELS"  # set by a daemon for its workers: may a client's kernels run on the cpu
PLACEMENTS = ("spread", "binpack", "same-host")
"""spread: the least used devices; binpack: the fullest that still have room; same-host: all on one server."""
LOG_LEVELS = ("debug", "info", "warning", "error")

_TIMES = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt]?)(?:i?b)?)", re.IGNORECASE)


# How text becomes a value. Each raises ValueError with a sentence that says what would be right.


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


def parse_cache(value: Any) -> str:
    """Whether uploads are remembered."""
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


@dataclass(frozen=True)
class Address:
    """Where a daemon listens."""

    host: str
    port: int
    own: bool = field(default=False, compare=False)  # a daemon that a program of this user started for itself

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
        server = (
            LOCAL if server == LOCAL else server if isinstance(server, Address) else parse_address(server)
        )
        if server in servers:
            raise ValueError(f"{server} is listed twice")
        servers.append(server)
    return tuple(servers)


@dataclass(frozen=True)
class DeviceSpec:
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


@dataclass(frozen=True)
class Quota:
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


def _setting(default: Any, parse: Callable[[Any], Any], variable: str) -> Any:
    return field(default=default, metadata={"parse": parse, "variable": variable})


@dataclass(frozen=True, eq=False, repr=False)  # nobody compares settings, and each method takes time to make
class ServerConfig:
    """What rgpu-server runs with; section ``[server]``."""

    devices: DeviceSpec = _setting(DeviceSpec("auto"), parse_devices, "RGPU_DEVICES")
    bind: str = _setting("127.0.0.1", parse_name, "RGPU_BIND")
    port: int = _setting(DEFAULT_PORT, parse_port, "RGPU_PORT")
    worker_ports: tuple[int, int] | None = _setting(None, parse_ports, "RGPU_WORKER_PORTS")  # None: any free one
    name: str = _setting("", parse_name, "RGPU_NAME")  # empty: the host's name
    keys: str | None = _setting(None, parse_path, "RGPU_KEYS")  # folder; None: the usual one if there, "none": open
    data: str = _setting("sealed", parse_data, "RGPU_DATA")  # with keys; clear: who comes proves it, nothing is sealed
    worker_user: str | None = _setting(None, parse_name, "RGPU_WORKER_USER")  # None: the daemon's own
    insecure: bool = _setting(False, parse_flag, "RGPU_INSECURE")
    device_memory: int = _setting(0, parse_bytes, "RGPU_DEVICE_MEMORY")  # 0: what the device has
    grace: float = _setting(8.0, parse_seconds, "RGPU_GRACE")
    prestart: int | None = _setting(None, parse_count, "RGPU_PRESTART")  # None: one for each device
    sessions: int = _setting(32, parse_count, "RGPU_SESSIONS")  # most sessions on one device
    oversubscribe: float = _setting(1.0, parse_factor, "RGPU_OVERSUBSCRIBE")  # lend so many times what there is
    spill_memory: int = _setting(0, parse_bytes, "RGPU_SPILL_MEMORY")  # of the host, for each session; 0: any
    spill_directory: str = _setting("", parse_directory, "RGPU_SPILL_DIRECTORY")  # then files here; empty: none
    quotas: tuple[Quota, ...] = _setting((), parse_quotas, "RGPU_QUOTAS")
    labels: tuple[tuple[str, str], ...] = _setting((), parse_labels, "RGPU_LABELS")
    registry: str = _setting("", parse_registry, "RGPU_REGISTRY")  # etcd://host:port,... to be found in; empty: none
    advertise: Address | None = _setting(None, parse_advertised, "RGPU_ADVERTISE")  # there; None: bind and port
    idle_timeout: float = _setting(0.0, parse_duration, "RGPU_IDLE_TIMEOUT")  # 0: leases may be idle for ever
    mps: bool = _setting(False, parse_flag, "RGPU_MPS")  # compute shares by CUDA's MPS, where its daemon runs
    # Clients' kernels run natively on cpu devices, as the server's user. Not set: on loopback only.
    allow_native_kernels: bool | None = _setting(None, parse_flag, "RGPU_ALLOW_NATIVE_KERNELS")
    http: Address | None = _setting(None, parse_http, "RGPU_HTTP")  # the web page and the metrics; None: off
    http_token_file: str | None = _setting(None, parse_path, "RGPU_HTTP_TOKEN_FILE")  # needed off loopback
    links: tuple[str, ...] = _setting(("auto",), parse_links, "RGPU_LINKS")  # auto: tcp, shm; ucx with RDMA
    log_level: str = _setting("info", parse_level, "RGPU_LOG_LEVEL")

    section = "server"

    @property
    def server_name(self) -> str:
        return self.name or socket.gethostname().split(".")[0]


@dataclass(frozen=True, eq=False, repr=False)
class ClientConfig:
    """What ``import rgpu`` runs with; section ``[client]``."""

    servers: tuple[Address | str, ...] = _setting((), parse_servers, "RGPU_SERVERS")
    visible_devices: tuple[str, ...] | None = _setting(None, parse_visible, "RGPU_VISIBLE_DEVICES")  # None: all
    registry: str = _setting("", parse_registry, "RGPU_REGISTRY")  # etcd://host:port,...; in place of servers
    # What a lease is asked for; none of them: each device is used when it is first needed, as far as it is free.
    gpus: int = _setting(0, parse_count, "RGPU_GPUS")
    memory: str = _setting("", parse_part, "RGPU_MEMORY")  # bytes, or a part of each device's memory
    compute: float = _setting(0.0, parse_share, "RGPU_COMPUTE")
    filters: tuple[str, ...] = _setting((), parse_texts, "RGPU_FILTERS")
    placement: str = _setting("spread", parse_placement, "RGPU_PLACEMENT")
    wait_for: float = _setting(0.0, parse_duration, "RGPU_WAIT_FOR")
    lease: tuple[str, ...] = _setting((), parse_texts, "RGPU_LEASE")  # what rgpu request or rgpu run got
    local_devices: DeviceSpec = _setting(DeviceSpec("auto"), parse_devices, "RGPU_LOCAL_DEVICES")
    connect_timeout: float = _setting(5.0, parse_seconds, "RGPU_CONNECT_TIMEOUT")
    link: str = _setting("auto", parse_link, "RGPU_LINK")  # auto: the best that works
    redundancy: int = _setting(1, parse_redundancy, "RGPU_REDUNDANCY")  # workers of a device, on as many servers
    launch_blocking: bool = _setting(False, parse_flag, "RGPU_LAUNCH_BLOCKING")
    check_prediction: bool = _setting(False, parse_flag, "RGPU_CHECK_PREDICTION")
    fuse_after: int = _setting(2, parse_count, "RGPU_FUSE_AFTER")  # calls of a fused function before it is compiled
    replay: bool = _setting(True, parse_flag, "RGPU_REPLAY")  # what repeats is sent once, then what differs
    upload_cache: str = _setting("auto", parse_cache, "RGPU_UPLOAD_CACHE")  # auto: where hashing costs less
    profile: str = _setting("", parse_profile, "RGPU_PROFILE")  # 1: report at the end; a path: JSON there

    section = "client"


SECTIONS: dict[str, type] = {c.section: c for c in (ServerConfig, ClientConfig)}


def config_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where rgpu.toml is looked for, what counts most first."""
    home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path("rgpu.toml"), home / "rgpu" / "config.toml", Path("/etc/rgpu/config.toml")]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def given(where: str, value: Any, parse: Callable[[Any], Any]) -> Any:
    """What a text means; ConfigError says where it stands and what would be right."""
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {value!r} has no meaning: {error}") from None


def read_file(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of one file, every key known; values still as TOML gave them."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    import tomllib

    try:
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for section, values in data.items():
        if section not in SECTIONS or not isinstance(values, dict):
            known = ", ".join(f"[{name}]" for name in SECTIONS)
            hint = _did_you_mean(section, SECTIONS)
            raise ConfigError(f"{path}: unknown key {section!r}; sections are {known}{hint}")
        names = [f.name for f in dataclasses.fields(SECTIONS[section])]
        for key in values:
            if key not in names:
                hint = _did_you_mean(key, names)
                raise ConfigError(f"{path}: unknown key {key!r} in [{section}]{hint}")
    return data


def load(
    kind: type,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    files: Iterable[Path] | None = None,
) -> tuple[Any, dict[str, str]]:
    """The settings of ``kind`` and, by name, where each one comes from.

    ``arguments`` holds what was given explicitly (None: not given). ``files`` replaces the list of
    files, the most important first.
    """
    found = [(path, read_file(path)) for path in (config_files(environ) if files is None else files)]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in dataclasses.fields(kind):
        name, variable = setting.name, setting.metadata["variable"]
        candidates = [((arguments or {}).get(name), f"argument --{name.replace('_', '-')}")]
        # An empty variable counts as unset, as everywhere in a shell.
        candidates.append((environ.get(variable) or None, variable))
        for path, data in found:
            candidates.append((data.get(kind.section, {}).get(name), f"{path}: {kind.section}.{name}"))
        origins[name] = "default"
        for value, where in candidates:
            if value is not None:
                values[name], origins[name] = given(where, value, setting.metadata["parse"]), where
                break
    return kind(**values), origins


def load_server(arguments: Mapping[str, Any] | None = None, **kw: Any) -> ServerConfig:
    return load(ServerConfig, arguments, **kw)[0]


def load_client(arguments: Mapping[str, Any] | None = None, **kw: Any) -> ClientConfig:
    return load(ClientConfig, arguments, **kw)[0]


def describe(config: Any, origins: Mapping[str, str]) -> str:
    """The settings as TOML with their origins, for ``--show-config``."""
    lines = [f"[{config.section}]"]
    for setting in dataclasses.fields(config):
        value = getattr(config, setting.name)
        if value is None or (origins[setting.name] == "default" and value in ("", (), 0.0)):
            lines.append(f"# {setting.name} is not set")
            continue
        if setting.name == "worker_ports":
            text = '"{}-{}"'.format(*value)
        elif isinstance(value, tuple):
            entries = ["=".join(e) if isinstance(e, tuple) else e for e in value]
            text = "[" + ", ".join(str(e) if isinstance(e, int) else f'"{e}"' for e in entries) + "]"
        elif isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, (int, float)):
            text = str(value)
        else:
            text = f'"{value}"'
        lines.append(f"{setting.name} = {text}  # {origins[setting.name]}")
    return "\n".join(lines)


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """This user's own directory for files that live as long as a process (made if missing, 0700)."""
    base = environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        path = Path(base) / "rgpu"
    else:
        folders = (environ.get("TMPDIR"), "/tmp", "/var/tmp", os.getcwd())  # tempfile's, which is slow to import
        path = Path(next(f for f in folders if f and os.access(f, os.W_OK))) / f"rgpu-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{path} must be a directory of your own that nobody else may enter (mode 0700)")
    return path
