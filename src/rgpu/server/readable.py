"""What a worker has to read: Python and what it imports, libraries, compilers, what the system says about itself.

The kernel (``server.landlock``) knows only what is allowed, so this is a list of that; what is secret is left out of it
also where it lies beneath something else. An operator can name more.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rgpu.server.host import compilers

EVERYTHING = "/"  # named by an operator: reading is not restricted

_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store",
    "/proc", "/sys",
)  # fmt: skip
# Of /etc what libraries and compilers look at; the rest is this host's own business, and much of it secret.
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "passwd", "group", "nsswitch.conf", "hosts",
    "host.conf", "gai.conf", "resolv.conf", "protocols", "services", "locale.alias", "os-release", "alternatives",
    "ssl/openssl.cnf", "pki/tls/openssl.cnf", "crypto-policies", "python3*", "clang*", "ucx", "libibverbs.d", "rdma",
)  # fmt: skip
_OF_A_PREFIX = ("bin", "lib*", "include", "share", "ssl", "pyvenv.cfg", "*-linux-*")  # what a prefix keeps programs in
_IMPORTED = ("rgpu", "numpy", "zmq", "msgpack", "ml_dtypes", "scipy", "cupy", "libucx")  # wherever they were installed
_LIBRARIES = ("RGPU_UCX_LIB", "RGPU_CRYPTO_LIB")  # variables that name one
_FOLDERS = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME")  # variables that name folders of libraries


def places(more: Sequence[str] = (), hidden: Sequence[str] = ()) -> list[str] | None:
    """What may be read, with ``more`` that the operator names, without what is beneath ``hidden``. None: everything."""
    if EVERYTHING in more:
        return None
    wanted = {os.path.realpath(place) for place in (*_needed(), *more) if os.path.isabs(place)}
    secret = [os.path.realpath(place) for place in hidden]
    return sorted({left for place in wanted if os.path.exists(place) for left in _without(place, secret)})


def _needed() -> Iterator[str]:
    yield from _SYSTEM
    yield from (place for name in _ETC for place in glob.glob(f"/etc/{name}"))
    for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}:
        yield from _of(Path(prefix))
    yield os.path.realpath(sys.executable)
    yield from sys.path
    for name in _IMPORTED:  # sys.path does not lead to what a finder of an editable installation finds
        spec = importlib.util.find_spec(name)
        yield from (spec.submodule_search_locations or ()) if spec is not None else ()
    for compiler in map(os.path.realpath, compilers()):
        yield compiler
        if os.path.basename(os.path.dirname(compiler)) == "bin":
            yield from _of(Path(compiler).parents[1])
    yield from (os.path.dirname(os.environ.get(name, "")) for name in _LIBRARIES)
    yield from (place for name in _FOLDERS for place in os.environ.get(name, "").split(os.pathsep))
    for name in ("/etc/ld.so.conf", *glob.glob("/etc/ld.so.conf.d/*.conf")):
        yield from _lines(name)


def _of(prefix: Path) -> Iterator[str]:
    """What belongs to programs that were installed under a prefix, which may be somebody's home."""
    for name in _OF_A_PREFIX:
        yield from map(str, prefix.glob(name))


def _lines(name: str) -> list[str]:
    try:
        return [line.strip() for line in Path(name).read_text().splitlines() if line.startswith("/")]
    except OSError:
        return []


def _without(place: str, secret: Iterable[str]) -> list[str]:
    """A place, or what is in it, if something secret is as well; nothing if it lies beneath what is secret."""
    if any(_beneath(place, each) for each in secret):
        return []
    if not any(_beneath(each, place) for each in secret):
        return [place]
    try:
        inside = [os.path.join(place, name) for name in os.listdir(place)]
    except OSError:
        return []
    return [left for each in inside if not os.path.islink(each) for left in _without(each, secret)]


def _beneath(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
