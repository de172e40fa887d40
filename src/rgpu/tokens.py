"""Tokens: the file by which a person is known to servers, and which of them a server gets to see.

One TOML file: who, where, the server's public key, a key pair. Looked for where ``$RGPU_TOKEN`` says, else in
``~/.config/rgpu/*.rgpu`` and ``/etc/rgpu/*.rgpu``. Knows text and files, no cryptography; a secret key leaves this
room only for the socket that needs it, and is never printed, logged or put into an environment or a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rgpu import config
from rgpu.config import Address
from rgpu.errors import ConfigError
from rgpu.record import Record

SUFFIX = ".rgpu"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
KEY_CHARACTERS = 40  # a CURVE key as text (Z85)


class Token(Record):
    """What a client shows (``public_key``, proven by ``secret_key``) and whom it believes (``server_key``)."""

    user: str
    server_key: str
    public_key: str
    secret_key: str
    endpoints: tuple[Address, ...] = ()
    path: str = ""
    own: bool = False  # for a server that this user's program started: its workers open to who knows the session

    def __repr__(self) -> str:
        return f"Token(user={self.user!r}, public_key={self.public_key!r}, path={self.path!r})"


def read(path: Path) -> Token:
    """The token in a file; ConfigError with the remedy when it is none or others may read it."""
    import tomllib  # here: every command looks for tokens, and most find none

    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"the token {path} cannot be read: {error.strerror}; see RGPU_TOKEN") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a token: {error}") from None
    # Windows has no such mode: files in a user's folders are for that user.
    if hasattr(os, "getuid") and status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others, who could then act as you: chmod 600 {path}")
    names = ("server_key", "public_key", "secret_key")
    server, public, secret = (key_text(data.get(name), f"{path}: {name}") for name in names)
    try:
        endpoints = tuple(a for a in config.parse_servers(data.get("endpoints", [])) if isinstance(a, Address))
        return Token(config.parse_name(data.get("user")), server, public, secret, endpoints, str(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not a token: {error}") from None


def key_text(value: Any, where: str) -> str:
    """A key in its text form."""
    if not isinstance(value, str) or len(value) != KEY_CHARACTERS or not value.isascii() or not value.isprintable():
        raise ConfigError(f"{where} is not a key ({KEY_CHARACTERS} characters)")
    return value


def found(environ: Mapping[str, str] = os.environ) -> list[Token]:
    """The tokens that may be used: the one of ``$RGPU_TOKEN`` alone, else all in the usual folders."""
    if given := environ.get("RGPU_TOKEN"):
        return [read(Path(given).expanduser())]
    folders = [path.parent for path in config.config_files(environ)[1:]]
    return [read(path) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}")) if os.access(path, os.R_OK)]


def find(address: Address, environ: Mapping[str, str] = os.environ) -> Token | None:
    """The token for a server: the one that names it; one that ``$RGPU_TOKEN`` names is for every server."""
    if (address.own or address.host in LOOPBACK) and ((token := own(address)) is not None or address.own):
        return token
    tokens = found(environ)
    named = next((token for token in tokens if address in token.endpoints), None)
    return named or (tokens[0] if tokens and environ.get("RGPU_TOKEN") else None)


def own(address: Address) -> Token | None:
    """What opens a daemon that a program of this user started for itself; None where it is gone."""
    if sys.platform != "linux":  # no daemon runs there
        return None
    for path in config.runtime_directory().glob("embedded-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            content = json.loads(path.read_text())
            os.kill(int(content["pid"]), 0)  # else it was another daemon's, which had this port before
            if config.parse_address(content["endpoint"]) == address:
                names = ("server_key", "public_key", "secret_key")
                server, public, secret = (key_text(content[name], f"{path}: {name}") for name in names)
                return Token("", server, public, secret, (address,), str(path), own=True)
    return None


def servers(environ: Mapping[str, str] = os.environ) -> tuple[Address, ...]:
    """The servers that the tokens name: the pool where no other was chosen."""
    return tuple(dict.fromkeys(address for token in found(environ) for address in token.endpoints))


def write(path: Path, content: Mapping[str, Any], comment: str = "", mode: int = 0o600) -> None:
    """A new TOML file of plain values, whole or not at all; never over another file."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {_toml(value)}" for name, value in content.items() if value is not None]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        try:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a rename, refuses to replace
        finally:
            os.unlink(temporary)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str) and value.isprintable():
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return value.isoformat()  # a time


def save(token: Token, path: Path) -> None:
    """Write a token for the person it is meant for."""
    content = {name: getattr(token, name) for name in Token.fields if name not in ("path", "own")}
    content["endpoints"] = [str(address) for address in token.endpoints]
    write(path, content, f"rgpu: whoever has this file is {token.user}. Keep it to yourself (mode 0600).")
