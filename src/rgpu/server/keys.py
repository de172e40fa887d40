"""The keys of a server: its own pair, and the list of those who may use it.

One folder, private to the server's user: ``server.key``, and ``clients/ID.toml`` for each token that was made. Removing
such a file is what revokes it; the daemon notices within half a second. A token's secret key is never kept here.
What a person may do (role, limits, until when) is decided by this room, from the key that the connection has proven.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rgpu import tokens
from rgpu.config import Address, ServerConfig, config_files, parse_name, runtime_directory
from rgpu.errors import ConfigError
from rgpu.link.curve import KeyPair, ServerKeys, new_pair, public_of
from rgpu.tokens import Token, key_text

log = logging.getLogger("rgpu.server")

NONE = "none"  # as the setting ``keys``: nobody needs a key
SERVER_KEY = "server.key"
CLIENTS = "clients"
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))  # what passes: it is the host's
_UNSURE_SECONDS = 1.0  # a folder that changed this recently may change again within its clock's tick


@dataclass(frozen=True)
class Person:
    """Who stands behind a public key, and what they may hold at once; 0: no limit of their own."""

    public_key: str
    user: str
    admin: bool = False
    memory: int = 0  # bytes of one device
    compute: float = 0.0  # share of one device
    devices: int = 0
    created: datetime | None = None
    expires: datetime | None = None

    @property
    def id(self) -> str:
        return key_id(self.public_key)

    def expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires.timestamp()


_KINDS: dict[str, Any] = {
    "admin": bool, "memory": int, "compute": (int, float), "devices": int,
    "created": (datetime, type(None)), "expires": (datetime, type(None)),
}  # fmt: skip


def key_id(public_key: str) -> str:
    """A short name of a key, fit for files and lists."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:12]


class KeyRing:
    """The folder of a server's keys. ``allows`` may be called from any thread."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._clock = folder, clock
        self.pair = _read_server_key(folder / SERVER_KEY)
        self._people: dict[str, Person] = {}
        self._seen: tuple[int, ...] = ()
        self.refresh()

    @property
    def server_keys(self) -> ServerKeys:
        return ServerKeys(self.pair, self.allows)

    def allows(self, public_key: str) -> bool:
        """Whether somebody with this key may enter. Who is not known may have got a token just now."""
        if public_key not in self._people:
            self.refresh()
        return self.who(public_key) is not None

    def who(self, public_key: str) -> Person | None:
        """The person of a key; None when it is unknown, revoked or expired."""
        person = self._people.get(public_key)
        return None if person is None or person.expired(self._clock()) else person

    def people(self) -> list[Person]:
        """All who have a key, the expired ones as well, by name."""
        return sorted(self._people.values(), key=lambda person: (person.user, person.id))

    def refresh(self) -> None:
        """Look whether tokens were made or revoked. While this process has no descriptor left the list stays as it
        is: nobody's token is void because a file cannot be opened just now."""
        try:
            self._look()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._seen = ()  # again next time

    def _look(self) -> None:
        try:
            changed = (self.folder / CLIENTS).stat().st_mtime_ns
        except OSError:
            changed = 0
        unsure = time.time() - changed / 1e9 < _UNSURE_SECONDS
        if self._seen != (changed,) or unsure:
            self._people = {p.public_key: p for p in map(_read_person, (self.folder / CLIENTS).glob("*.toml")) if p}
            self._seen = () if unsure else (changed,)

    def create(self, user: str, endpoints: tuple[Address, ...], **limits: Any) -> tuple[Person, Token]:
        """A new key for somebody: what stays here, and what they get."""
        pair = new_pair()
        now = datetime.now(UTC).replace(microsecond=0)
        person = Person(pair.public, user, created=now, **limits)
        content = {name: value for name, value in vars(person).items() if value}
        tokens.write(self.folder / CLIENTS / f"{person.id}.toml", content, "rgpu: remove this file to revoke the token")
        self.refresh()
        return person, Token(user, self.pair.public, pair.public, pair.secret, endpoints)

    def revoke(self, person: Person) -> None:
        (self.folder / CLIENTS / f"{person.id}.toml").unlink(missing_ok=True)
        self.refresh()


class OwnKeys:
    """Of a server that a program started for itself: made now, for whoever may read that user's private files. Others
    on the same host reach the same loopback address."""

    def __init__(self) -> None:
        self._server, self._client = new_pair(), new_pair()

    @property
    def entrance(self) -> ServerKeys:
        return ServerKeys(self._server, lambda key: key == self._client.public)

    @property
    def shown(self) -> dict[str, str]:
        """What a client needs (``tokens.own``)."""
        return {
            "server_key": self._server.public,
            "public_key": self._client.public,
            "secret_key": self._client.secret,
        }


def default_folder() -> Path:
    """Where ``init`` puts a server's keys: the system's folder for root, else the user's own."""
    own, system = (path.parent / "keys" for path in config_files()[1:3])
    return system if os.getuid() == 0 else own


def secrets(settings: ServerConfig, ring: KeyRing | None) -> list[str]:
    """Places of what lets people into this server or others, for nobody else to read."""
    usual = [path.parent for path in config_files()[1:]]  # keys and tokens
    given = [Path(name) for name in (settings.http_token_file, os.environ.get("RGPU_TOKEN")) if name]
    places = [*usual, runtime_directory(), *given, *([ring.folder] if ring else [])]
    return [str(place.absolute()) for place in places]


def open_ring(setting: str | None) -> KeyRing | None:
    """The keys that the setting names; None: the usual folder, if ``init`` was run. None: nobody needs a key."""
    if setting == NONE:
        return None
    folder = Path(setting).expanduser() if setting else default_folder()
    if not setting and not (folder / SERVER_KEY).exists():
        return None
    return KeyRing(folder)


def init(folder: Path) -> KeyPair:
    """Make a server's keys. Refuses to replace those that are there: every token would be void."""
    (folder / CLIENTS).mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    pair = new_pair()
    try:
        comment = "rgpu: the server's own key. Whoever has this file can pretend to be this server."
        tokens.write(folder / SERVER_KEY, {"public_key": pair.public, "secret_key": pair.secret}, comment)
    except FileExistsError:
        raise ConfigError(
            f"{folder / SERVER_KEY} is there already; every token was made for it. "
            "To begin anew remove it by hand and make all tokens again"
        ) from None
    return pair


def _read_server_key(path: Path) -> KeyPair:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"there is no server key {path}: make one with 'rgpu-server init'") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the server key {path} cannot be read: {error}") from None
    if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid not in (os.getuid(), 0):
        raise ConfigError(f"{path} must be this user's and readable by nobody else: chmod 600 {path}")
    secret = key_text(data.get("secret_key"), f"{path}: secret_key")
    return KeyPair(public_of(secret), secret)


def _read_person(path: Path) -> Person | None:
    """One entry of the list. A file that cannot be understood lets nobody in, and stops nobody else."""
    try:
        person = Person(**tomllib.loads(path.read_text()))
        key_text(person.public_key, "public_key")
        parse_name(person.user)
        if not all(isinstance(getattr(person, name), kinds) for name, kinds in _KINDS.items()):
            raise ValueError("a value of the wrong kind")
    except FileNotFoundError:  # revoked just now
        return None
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        log.warning("%s is not understood and lets nobody in: %s", path, error)
        return None
    return person
