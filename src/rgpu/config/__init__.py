"""Settings: the only room that reads the environment and rgpu.toml.

A setting is a name with a default, a way to make a value of a text (``values``), and the variable that carries it. What
counts, in this order: arguments, environment, ./rgpu.toml, ~/.config/rgpu/config.toml, /etc/rgpu/config.toml. A name or
value without a meaning is a ConfigError that names it and where it stands, never a silent default. What only some
settings need is imported where they are read: every command starts with this module.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, dataclass_transform

from rgpu.config.values import (
    DEFAULT_PORT,
    ETCD_PORT,
    LINKS,
    LOCAL,
    LOG_LEVELS,
    PLACEMENTS,
    Address,
    DeviceSpec,
    Quota,
    is_loopback,
    parse_address,
    parse_advertised,
    parse_bytes,
    parse_choice,
    parse_count,
    parse_data,
    parse_devices,
    parse_directories,
    parse_directory,
    parse_duration,
    parse_factor,
    parse_flag,
    parse_http,
    parse_labels,
    parse_level,
    parse_link,
    parse_links,
    parse_name,
    parse_part,
    parse_path,
    parse_placement,
    parse_port,
    parse_ports,
    parse_profile,
    parse_quotas,
    parse_redundancy,
    parse_registry,
    parse_seconds,
    parse_servers,
    parse_share,
    parse_texts,
    parse_visible,
    registry_members,
)
from rgpu.errors import ConfigError

GRAPHS = "RGPU_GRAPHS"  # set by a daemon for its workers: whether repetitions become graphs of a CUDA device
NATIVE_KERNELS = "RGPU_NATIVE_KERNELS"  # set by a daemon for its workers: may a client's kernels run on the cpu


class Setting:
    """``empty``: an empty variable has a meaning; for all others it counts as unset, as everywhere in a shell."""

    def __init__(self, default: Any, parse: Callable[[Any], Any], variable: str, empty: bool = False) -> None:
        self.default, self.parse, self.variable, self.empty = default, parse, variable, empty


def _setting(default: Any, parse: Callable[[Any], Any], variable: str, empty: bool = False) -> Any:
    """A class of settings has it as a Setting in ``settings``, and the default in its place."""
    return Setting(default, parse, variable, empty)


@dataclass_transform(frozen_default=True)
class Settings:
    """Those of one section. They do not change, and nobody compares them."""

    section: ClassVar[str]
    settings: ClassVar[dict[str, Setting]]

    def __init_subclass__(cls, section: str) -> None:
        cls.section = section
        cls.settings = {name: x for name, x in vars(cls).items() if isinstance(x, Setting)}
        for name, setting in cls.settings.items():
            setattr(cls, name, setting.default)

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - self.settings.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("settings do not change")

    def but(self, **changes: Any) -> Self:
        """The same with other values of these settings."""
        return type(self)(**self.__dict__ | changes)


class ServerConfig(Settings, section="server"):
    """What rgpu-server runs with; section ``[server]``."""

    devices: DeviceSpec = _setting(DeviceSpec("auto"), parse_devices, "RGPU_DEVICES")
    bind: str = _setting("127.0.0.1", parse_name, "RGPU_BIND")
    port: int = _setting(DEFAULT_PORT, parse_port, "RGPU_PORT")
    worker_ports: tuple[int, int] | None = _setting(None, parse_ports, "RGPU_WORKER_PORTS")  # None: any free one
    name: str = _setting("", parse_name, "RGPU_NAME")  # empty: the host's name
    keys: str | None = _setting(None, parse_path, "RGPU_KEYS")  # folder; None: the usual one if there, "none": open
    data: str = _setting("sealed", parse_data, "RGPU_DATA")  # with keys; clear: who comes proves it, nothing is sealed
    worker_user: str | None = _setting(None, parse_name, "RGPU_WORKER_USER")  # None: the daemon's own
    # What workers of a server with keys may read besides Python, libraries and compilers; "/": everything.
    readable: tuple[str, ...] = _setting((), parse_directories, "RGPU_READABLE")
    insecure: bool = _setting(False, parse_flag, "RGPU_INSECURE")
    device_memory: int = _setting(0, parse_bytes, "RGPU_DEVICE_MEMORY")  # 0: what the device has
    grace: float = _setting(8.0, parse_seconds, "RGPU_GRACE")
    prestart: int | None = _setting(None, parse_count, "RGPU_PRESTART")  # None: one for each device
    sessions: int = _setting(32, parse_count, "RGPU_SESSIONS")  # most sessions on one device
    oversubscribe: float = _setting(1.0, parse_factor, "RGPU_OVERSUBSCRIBE")  # lend so many times what there is
    spill_memory: int = _setting(0, parse_bytes, "RGPU_SPILL_MEMORY")  # of the host, for each session; 0: any
    spill_directory: str = _setting("", parse_directory, "RGPU_SPILL_DIRECTORY")  # then files here; empty: none
    disk_per_person: int = _setting(4 << 30, parse_bytes, "RGPU_DISK_PER_PERSON")  # with keys; 0: any
    # Of each worker; auto: where this process's own was delegated to it.
    control_groups: str = _setting("auto", parse_choice, "RGPU_CONTROL_GROUPS")
    quotas: tuple[Quota, ...] = _setting((), parse_quotas, "RGPU_QUOTAS")
    labels: tuple[tuple[str, str], ...] = _setting((), parse_labels, "RGPU_LABELS")
    registry: str = _setting("", parse_registry, "RGPU_REGISTRY")  # etcd://host:port,... to be found in; empty: none
    advertise: Address | None = _setting(None, parse_advertised, "RGPU_ADVERTISE")  # there; None: bind and port
    idle_timeout: float = _setting(0.0, parse_duration, "RGPU_IDLE_TIMEOUT")  # 0: leases may be idle for ever
    mps: bool = _setting(False, parse_flag, "RGPU_MPS")  # compute shares by CUDA's MPS, where its daemon runs
    # Clients' kernels run natively on cpu devices, as the server's user. Not set: on loopback only.
    allow_native_kernels: bool | None = _setting(None, parse_flag, "RGPU_ALLOW_NATIVE_KERNELS")
    graphs: bool = _setting(True, parse_flag, GRAPHS)  # what a client repeats is launched as CUDA graphs
    http: Address | None = _setting(None, parse_http, "RGPU_HTTP")  # the web page and the metrics; None: off
    http_token_file: str | None = _setting(None, parse_path, "RGPU_HTTP_TOKEN_FILE")  # needed off loopback
    links: tuple[str, ...] = _setting(("auto",), parse_links, "RGPU_LINKS")  # auto: tcp, shm; ucx with RDMA
    log_level: str = _setting("info", parse_level, "RGPU_LOG_LEVEL")

    @property
    def server_name(self) -> str:
        return self.name or socket.gethostname().split(".")[0]


class ClientConfig(Settings, section="client"):
    """What ``import rgpu`` runs with; section ``[client]``."""

    servers: tuple[Address | str, ...] = _setting((), parse_servers, "RGPU_SERVERS")
    # None: all; an empty variable shows none, as CUDA_VISIBLE_DEVICES
    visible_devices: tuple[str, ...] | None = _setting(None, parse_visible, "RGPU_VISIBLE_DEVICES", empty=True)
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
    checksum: str = _setting("auto", parse_choice, "RGPU_CHECKSUM")  # of tcp without keys; auto: beyond this host
    redundancy: int = _setting(1, parse_redundancy, "RGPU_REDUNDANCY")  # workers of a device, on as many servers
    launch_blocking: bool = _setting(False, parse_flag, "RGPU_LAUNCH_BLOCKING")
    check_prediction: bool = _setting(False, parse_flag, "RGPU_CHECK_PREDICTION")
    fuse_after: int = _setting(2, parse_count, "RGPU_FUSE_AFTER")  # calls of a fused function before it is compiled
    replay: bool = _setting(True, parse_flag, "RGPU_REPLAY")  # what repeats is sent once, then what differs
    upload_cache: str = _setting("auto", parse_choice, "RGPU_UPLOAD_CACHE")  # auto: where hashing costs less
    profile: str = _setting("", parse_profile, "RGPU_PROFILE")  # 1: report at the end; a path: JSON there


SECTIONS: dict[str, type[Settings]] = {c.section: c for c in (ServerConfig, ClientConfig)}


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
        names = SECTIONS[section].settings
        for key in values:
            if key not in names:
                hint = _did_you_mean(key, names)
                raise ConfigError(f"{path}: unknown key {key!r} in [{section}]{hint}")
    return data


def load(
    kind: type[Settings],
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
    for name, setting in kind.settings.items():
        candidates = [((arguments or {}).get(name), f"argument --{name.replace('_', '-')}")]
        text = environ.get(setting.variable)
        candidates.append((text if text or setting.empty else None, setting.variable))
        for path, data in found:
            candidates.append((data.get(kind.section, {}).get(name), f"{path}: {kind.section}.{name}"))
        origins[name] = "default"
        for value, where in candidates:
            if value is not None:
                values[name], origins[name] = given(where, value, setting.parse), where
                break
    return kind(**values), origins


def load_server(arguments: Mapping[str, Any] | None = None, **kw: Any) -> ServerConfig:
    return load(ServerConfig, arguments, **kw)[0]


def load_client(arguments: Mapping[str, Any] | None = None, **kw: Any) -> ClientConfig:
    return load(ClientConfig, arguments, **kw)[0]


def describe(config: Settings, origins: Mapping[str, str]) -> str:
    """The settings as TOML with their origins, for ``--show-config``."""
    lines = [f"[{config.section}]"]
    for name in config.settings:
        value = getattr(config, name)
        if value is None or (origins[name] == "default" and value in ("", (), 0.0)):
            lines.append(f"# {name} is not set")
            continue
        if name == "worker_ports":
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
        lines.append(f"{name} = {text}  # {origins[name]}")
    return "\n".join(lines)


def runtime_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """This user's own directory for files that live as long as a process (made if missing, 0700)."""
    if not hasattr(os, "getuid"):  # Windows, where what is in a user's folder is for that user
        path = Path(environ.get("LOCALAPPDATA") or Path.home()) / "rgpu"
        path.mkdir(parents=True, exist_ok=True)
        return path
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
