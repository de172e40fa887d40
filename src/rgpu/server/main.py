"""The command ``rgpu-server``: arguments, checks a user should hear about at once, the ready line."""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import resource
import socket
import sys
from pathlib import Path

import numpy as np

import rgpu.config as config
import rgpu.web as web
from rgpu import link
from rgpu.config import Address, ServerConfig
from rgpu.errors import ConfigError
from rgpu.registry.directory import Registration
from rgpu.server import landlock
from rgpu.server.daemon import Daemon
from rgpu.server.keys import SERVER_KEY, KeyRing, OwnKeys, default_folder, init, open_ring
from rgpu.server.showing import facts_of
from rgpu.server.sparing import Sparing
from rgpu.server.telemetry import Inventory
from rgpu.web import Board
from rgpu.wire.values import OLD_NUMPY
from rgpu.wire.version import VERSION, fingerprint

log = logging.getLogger("rgpu.server")

DESCRIPTORS = 65536  # more than a daemon's clients take
ANY_ADDRESS = ("0.0.0.0", "::")  # what a server listens on is no address to reach it at


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rgpu-server",
        description="Serve this host's devices to rgpu clients.",
        epilog="'rgpu-server init' makes the keys that every address but loopback needs. "
        "Every option can also be set by a variable (RGPU_BIND, ...) or in [server] of rgpu.toml.",
    )
    add = parser.add_argument
    add(
        "--devices",
        metavar="SPEC",
        help="cpu:N, cuda, cuda:0,1 or auto (default: CUDA devices, else cpu:1)",
    )
    add("--worker-ports", metavar="A-B", help="ports for the workers, for firewalls and tunnels (default: any free)")
    add("--bind", metavar="ADDR", help="address to listen on (default: 127.0.0.1)")
    add("--port", metavar="N", help=f"TCP port; 0 takes any free one (default: {config.DEFAULT_PORT})")
    add("--keys", metavar="DIR", help="the server's keys (default: those of 'rgpu-server init'; none: open to anybody)")
    add("--data", metavar="HOW", help="sealed, or with keys on trusted networks clear: not encrypted (default: sealed)")
    add(
        "--insecure",
        action="store_true",
        default=None,
        help="listen without keys on other addresses than loopback: whoever reaches them uses the devices",
    )
    add(
        "--worker-user",
        metavar="USER|A-B",
        help="run workers as this user, or each as one of these user ids (needs root; default: the server's own user)",
    )
    add("--readable", metavar="DIR:DIR", help="what workers may read besides Python, libraries, compilers; /: all")
    add("--name", metavar="S", help="what clients see this server called (default: the host's name)")
    add("--device-memory", metavar="BYTES", help="memory of each device, like 4G (default: what there is)")
    add("--grace", metavar="S", help="seconds a client may be gone before its session ends (default: 8)")
    add("--prestart", metavar="N", help="workers kept ready for new clients (default: one for each device)")
    add("--sessions", metavar="N", help="most sessions on one device (default: 32)")
    add("--oversubscribe", metavar="FACTOR", help="lend so many times the memory there is, and spill (default: 1)")
    add("--spill-memory", metavar="BYTES", help="host memory for what one session spills (default: any amount)")
    add("--spill-directory", metavar="DIR", help="where it is spilled beyond that (default: nowhere)")
    add("--disk-per-person", metavar="BYTES", help="files of one key's sessions on this disk (default: 4GiB; 0: any)")
    add("--control-groups", metavar="HOW", help="of each worker: on, off (default: where systemd's Delegate= allows)")
    add("--quotas", metavar="Q", help="what users may hold: 'alice:memory=8GiB,compute=1,weight=2; *:devices=1'")
    add("--labels", metavar="L", help="labels that clients can ask for, like zone=a,team=ml")
    add("--registry", metavar="URL", help="let clients find this server in etcd://host:2379,... (default: nowhere)")
    add("--advertise", metavar="ADDR", help="the address it is found at (default: --bind, or the host's name)")
    add("--idle-timeout", metavar="T", help="give leases back that were idle for so long, like 30m (default: never)")
    add("--mps", action="store_true", default=None, help="compute shares by CUDA's MPS: sessions share a fault domain")
    add(
        "--allow-native-kernels",
        action="store_true",
        default=None,
        help="let clients' custom kernels run as native code on cpu devices (default: on loopback only)",
    )
    add("--no-graphs", dest="graphs", action="store_false", default=None, help="no CUDA graphs of what clients repeat")
    add("--http", metavar="ADDR", help="serve a web page, REST and metrics, read-only: 9400 is loopback (default: off)")
    add("--http-token-file", metavar="FILE", help="what readers must show; without it --http is loopback only")
    add("--links", metavar="KIND,...", help="links offered: of tcp,shm,ucx, or zmq (default: tcp,shm; ucx with RDMA)")
    add("--log-level", metavar="LEVEL", help=f"one of {', '.join(config.LOG_LEVELS)} (default: info)")
    add("--config", metavar="FILE", help="read this file instead of the usual ones")
    add("--show-config", action="store_true", help="print the settings and where they come from, and exit")
    add("--version", action="version", version=f"rgpu-server {VERSION} (protocol {fingerprint()})")
    add("--parent", metavar="PID", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["init"]:
        return _init(argv[1:])
    options = build_parser().parse_args(argv)
    if OLD_NUMPY:
        return _fail(
            f"a server needs NumPy 2.1 or newer, this is {np.__version__} (a client may have it): "
            "pip install -U numpy, or let RGPU_SERVERS name a server in another environment"
        )
    try:
        settings, origins = _settings(options)
        if options.show_config:
            print(config.describe(settings, origins))
            return 0
        ring = open_ring(settings.keys)
        _check_bind(settings, ring)
        os.environ[config.NATIVE_KERNELS] = str(int(_native_kernels(settings)))  # for the workers
        os.environ[config.GRAPHS] = str(int(settings.graphs))  # the same
        quiet = options.parent and origins["log_level"] == "default"  # the output is the program's
        logging.basicConfig(
            format="%(asctime)s %(name)s %(levelname)s %(message)s",
            level="WARNING" if quiet else settings.log_level.upper(),
            stream=sys.stderr,
        )
        for handler in logging.getLogger().handlers:
            handler.addFilter(Sparing())
        link.offered(settings.links)
        _allow_connections()
        inventory = Inventory(
            settings.devices,
            settings.device_memory,
            always_cpu=bool(options.parent),
            server=settings.server_name,
        )
    except ConfigError as error:
        return _fail(str(error))
    board = Board(VERSION) if settings.http else None
    try:
        own = OwnKeys() if options.parent and ring is None else None
        entrance = own.entrance if own else None
        daemon = Daemon(settings, inventory, ring=ring, entrance=entrance, parent=options.parent, board=board)
    except ConfigError as error:
        inventory.close()
        return _fail(str(error))
    except OSError as error:
        inventory.close()
        return _fail(_bind_error(settings, error))
    if board is None:
        return _serve(daemon, options.parent, own)
    try:
        page = web.serve(settings.http, board, settings.http_token_file)
    except ConfigError as error:
        daemon.close()
        return _fail(str(error))
    daemon.page = page.url
    try:
        return _serve(daemon, options.parent, own)
    finally:
        page.close()


def _settings(options: argparse.Namespace) -> tuple[ServerConfig, dict[str, str]]:
    files = None
    if options.config:
        files = [Path(options.config)]
        if not files[0].is_file():
            raise ConfigError(f"--config: there is no file {options.config}")
    arguments = {name: getattr(options, name) for name in ServerConfig.settings}
    return config.load(ServerConfig, arguments, files=files)


def _native_kernels(settings: ServerConfig) -> bool:
    """Whether clients may run code of their own here: as the operator says, else where only this host is served."""
    given = settings.allow_native_kernels
    return config.is_loopback(settings.bind) if given is None else given


def _allow_connections() -> None:
    """Every connection takes a descriptor, a stranger's as well: as many as this user may have, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_bind(settings: ServerConfig, ring: KeyRing | None) -> None:
    """Without keys whoever reaches a socket may use the devices: loopback only, or an operator who insists."""
    try:
        loopback = config.is_loopback(settings.bind)
    except OSError as error:
        raise ConfigError(f"--bind {settings.bind}: not an address of this host ({error.strerror})") from None
    if ring is not None and settings.data == "clear":
        print(
            'rgpu-server: WARNING: data = "clear": clients prove their keys, but arrays and commands pass the network '
            "unencrypted; whoever is on it can read and change them.",
            file=sys.stderr,
            flush=True,
        )
    if ring is not None or loopback:
        return
    if not settings.insecure:
        raise ConfigError(
            f"--bind {settings.bind} is refused: this server has no keys, so anybody who reaches that address could "
            "use its devices. Make keys with 'rgpu-server init' and a token for each user with 'rgpu token create'; "
            "or stay on 127.0.0.1 behind an SSH tunnel; --insecure does without"
        )
    print(
        f"rgpu-server: WARNING: --insecure: no keys. Everybody who can reach {settings.bind} uses these devices, reads "
        "and ends the sessions of others, and all data passes unprotected.",
        file=sys.stderr,
        flush=True,
    )


def _init(argv: list[str]) -> int:
    """``rgpu-server init``: make the server's keys and say what comes next."""
    parser = argparse.ArgumentParser(
        prog="rgpu-server init",
        description="Make this server's keys. The servers of one pool may each have a copy of the folder.",
    )
    try:
        given = config.load_server().keys
    except ConfigError as error:
        return _fail(str(error))
    usual = default_folder() if given in (None, "none") else given
    parser.add_argument("--keys", metavar="DIR", help=f"where to (default: {usual})")
    folder = Path(parser.parse_args(argv).keys or usual).expanduser()
    try:
        pair = init(folder)
    except (ConfigError, OSError) as error:
        return _fail(f"{folder}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error))
    print(f"made {folder / SERVER_KEY}\npublic key: {pair.public}")
    print("next: rgpu token create --user NAME -o NAME.rgpu, and rgpu-server --bind ADDRESS")
    return 0


def _bind_error(settings: ServerConfig, error: OSError) -> str:
    where = f"{settings.bind}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use, perhaps by another rgpu-server; choose a port with --port (0: any)"
    if error.errno == errno.EACCES:
        return f"{where} may not be used by this user: choose a port above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror}"


def _serve(daemon: Daemon, parent: int, own: OwnKeys | None = None) -> int:
    runtime_file = _write_runtime_file(daemon, parent, own) if parent else None
    devices = ", ".join(
        f"{device.kind}:{device.index} {device.memory_total >> 20} MiB" for device in daemon.devices
    )
    count = len(daemon.devices)
    protection = "keys" if daemon.protected else "no keys"
    if daemon.protected and _native_kernels(daemon.config) and not daemon.config.worker_user:
        log.warning(
            "clients' kernels run natively as this server's own user%s: "
            "give workers a user of their own with --worker-user",
            "" if landlock.version() else ", who can read the server's key",
        )
    try:
        print(
            f"rgpu-server {daemon.name} listening on {daemon.endpoint} "
            f"({protection}, {count} device{'s' if count > 1 else ''}: {devices})",
            flush=True,
        )
        if daemon.page:
            print(f"rgpu-server {daemon.name} shows itself on {daemon.page}", flush=True)
        if daemon.config.registry and not parent:
            daemon.register(_registration(daemon))
        daemon.run()
    finally:
        if runtime_file:
            runtime_file.unlink(missing_ok=True)
    log.info("stopped")
    return 0


def _registration(daemon: Daemon) -> Registration:
    """The daemon's entry in the registry."""
    settings, port = daemon.config, config.parse_address(daemon.endpoint).port
    if settings.advertise:
        address = Address(settings.advertise.host, settings.advertise.port or port)
    else:
        address = Address(socket.gethostname() if settings.bind in ANY_ADDRESS else settings.bind, port)
    about = {
        "name": daemon.name,
        "version": VERSION,
        "quotas": {quota.user: _bounds(quota) for quota in settings.quotas},
        "devices": [
            {**facts_of(device, settings), "memory_lendable": int(device.memory_total * settings.oversubscribe)}
            for device in daemon.devices
        ],
    }
    return Registration(settings.registry, address, about)


def _bounds(quota: config.Quota) -> dict[str, float]:
    return {name: value for name, value in vars(quota).items() if name != "user"}


def _write_runtime_file(daemon: Daemon, parent: int, own: OwnKeys | None) -> Path:
    """Where the program that started this daemon, and rgpu-smi, find it and its key: nobody but this user."""
    path = config.runtime_directory() / f"embedded-{os.getpid()}.json"
    path.unlink(missing_ok=True)  # a process of this number lived before and was killed
    content = {"endpoint": daemon.endpoint, "pid": os.getpid(), "parent": parent, **(own.shown if own else {})}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
    return path


def _fail(message: str) -> int:
    print(f"rgpu-server: {message}", file=sys.stderr)
    return 2
