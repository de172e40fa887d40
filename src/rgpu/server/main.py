"""The command ``rgpu-server``: arguments, checks a user should hear about at once, the ready line."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import ipaddress
import json
import logging
import os
import socket
import sys
from pathlib import Path

import numpy as np

import rgpu.config as config
import rgpu.web as web
from rgpu.config import ServerConfig
from rgpu.errors import ConfigError
from rgpu.server.daemon import Daemon
from rgpu.server.telemetry import Inventory
from rgpu.web import Board
from rgpu.wire.values import OLD_NUMPY
from rgpu.wire.version import VERSION, fingerprint

log = logging.getLogger("rgpu.server")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rgpu-server",
        description="Serve this host's devices to rgpu clients.",
        epilog="Every option can also be set by a variable (RGPU_BIND, ...) or in [server] of rgpu.toml.",
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
    add("--name", metavar="S", help="what clients see this server called (default: the host's name)")
    add("--device-memory", metavar="BYTES", help="memory of each device, like 4G (default: what there is)")
    add("--grace", metavar="S", help="seconds a client may be gone before its session ends (default: 8)")
    add("--prestart", metavar="N", help="workers kept ready for new clients (default: one for each device)")
    add("--sessions", metavar="N", help="most sessions on one device (default: 32)")
    add(
        "--allow-native-kernels",
        action="store_true",
        default=None,
        help="let clients' custom kernels run as native code on cpu devices (default: on loopback only)",
    )
    add("--http", metavar="ADDR", help="serve a web page, REST and metrics, read-only: 9400 is loopback (default: off)")
    add("--http-token-file", metavar="FILE", help="what readers must show; without it --http is loopback only")
    add("--links", metavar="KIND,...", help="links offered to clients: tcp or zmq, shm, ucx (default: tcp,shm,ucx)")
    add("--log-level", metavar="LEVEL", help=f"one of {', '.join(config.LOG_LEVELS)} (default: info)")
    add("--config", metavar="FILE", help="read this file instead of the usual ones")
    add("--show-config", action="store_true", help="print the settings and where they come from, and exit")
    add("--version", action="version", version=f"rgpu-server {VERSION} (protocol {fingerprint()})")
    add("--parent", metavar="PID", type=int, default=0, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> int:
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
        _check_bind(settings.bind)
        os.environ[config.NATIVE_KERNELS] = str(int(_native_kernels(settings)))  # for the workers
        quiet = options.parent and origins["log_level"] == "default"  # the output is the program's
        logging.basicConfig(
            format="%(asctime)s %(name)s %(levelname)s %(message)s",
            level="WARNING" if quiet else settings.log_level.upper(),
            stream=sys.stderr,
        )
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
        daemon = Daemon(settings, inventory, parent=options.parent, board=board)
    except OSError as error:
        inventory.close()
        return _fail(_bind_error(settings, error))
    if board is None:
        return _serve(daemon, options.parent)
    try:
        page = web.serve(settings.http, board, settings.http_token_file)
    except ConfigError as error:
        daemon.close()
        return _fail(str(error))
    daemon.page = page.url
    try:
        return _serve(daemon, options.parent)
    finally:
        page.close()


def _settings(options: argparse.Namespace) -> tuple[ServerConfig, dict[str, str]]:
    files = None
    if options.config:
        files = [Path(options.config)]
        if not files[0].is_file():
            raise ConfigError(f"--config: there is no file {options.config}")
    arguments = {field.name: getattr(options, field.name) for field in dataclasses.fields(ServerConfig)}
    return config.load(ServerConfig, arguments, files=files)


def _native_kernels(settings: ServerConfig) -> bool:
    """Whether clients may run code of their own here: as the operator says, else where only this host is served."""
    if settings.allow_native_kernels is not None:
        return settings.allow_native_kernels
    infos = socket.getaddrinfo(settings.bind, None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in infos)


def _check_bind(bind: str) -> None:
    """Loopback only: whoever reaches the port may use the devices."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)}
    except socket.gaierror as error:
        raise ConfigError(f"--bind {bind}: not an address of this host ({error.strerror})") from None
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        raise ConfigError(
            f"--bind {bind} is refused: rgpu has no keys yet, so anybody who reaches that address could "
            "use this host's devices; bind 127.0.0.1 and let clients come through an SSH tunnel"
        )


def _bind_error(settings: ServerConfig, error: OSError) -> str:
    where = f"{settings.bind}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is in use, perhaps by another rgpu-server; choose a port with --port (0: any)"
    if error.errno == errno.EACCES:
        return f"{where} may not be used by this user: choose a port above 1023 with --port"
    return f"cannot listen on {where}: {error.strerror}"


def _serve(daemon: Daemon, parent: int) -> int:
    runtime_file = _write_runtime_file(daemon, parent) if parent else None
    devices = ", ".join(
        f"{device.kind}:{device.index} {device.memory_total >> 20} MiB" for device in daemon.devices
    )
    count = len(daemon.devices)
    try:
        print(
            f"rgpu-server {daemon.name} listening on {daemon.endpoint} "
            f"({count} device{'s' if count > 1 else ''}: {devices})",
            flush=True,
        )
        if daemon.page:
            print(f"rgpu-server {daemon.name} shows itself on {daemon.page}", flush=True)
        daemon.run()
    finally:
        if runtime_file:
            runtime_file.unlink(missing_ok=True)
    log.info("stopped")
    return 0


def _write_runtime_file(daemon: Daemon, parent: int) -> Path:
    """Where rgpu-smi finds a daemon that a program started for itself."""
    path = config.runtime_directory() / f"embedded-{os.getpid()}.json"
    path.unlink(missing_ok=True)  # a process of this number lived before and was killed
    content = {"endpoint": daemon.endpoint, "pid": os.getpid(), "parent": parent}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
    return path


def _fail(message: str) -> int:
    print(f"rgpu-server: {message}", file=sys.stderr)
    return 2
