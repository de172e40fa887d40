"""From C++ text to a loaded shared object: finds a compiler, keeps binaries by content, runs them on all cores.

The code is a client's and runs natively, in the session's own worker only; ``allowed`` is the gate. Binaries
live in a private directory of the user, written aside and renamed, so that workers can share them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rgpu import _native
from rgpu.config import NATIVE_KERNELS, parse_flag
from rgpu.server.host import compilers

HEADERS = Path(__file__).parent.parent / "cuda_cpu"
COMPILE_SECONDS = 120
CACHE_BYTES = 512 << 20  # of binaries; those used longest ago make room
_ASIDE = "compile-"  # so the folders of compilations under way begin
FIBERS = "-DRGPU_FIBERS"  # the threads of a block are fibers
_FLAGS = (
    "-O3", "-march=native", "-fPIC", "-shared", "-w", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
    "-fno-strict-aliasing", "-fpermissive",
    "-ffp-contract=off",  # rounded like NumPy's results, which this backend's other functions are
)  # fmt: skip


class CompileException(Exception):
    """(message, source, name, options, backend), as CuPy's exception of this name keeps them."""


class NativeKernelsRefused(PermissionError):
    """This server does not run client code."""


def check_allowed() -> None:
    """Raise unless this server's operator lets clients run code of their own."""
    if not parse_flag(os.environ.get(NATIVE_KERNELS, "0")):
        raise NotImplementedError(
            "custom kernels are off on this server: its cpu devices would run them natively, as the server's user. "
            "Its operator can allow that with `rgpu-server --allow-native-kernels`"
        )


@functools.cache
def compiler() -> tuple[str, str]:
    """The C++ compiler and what identifies its binaries."""
    for path in compilers():
        version = subprocess.run([path, "--version"], capture_output=True, timeout=20, check=False).stdout
        return path, f"{path} {version!r} {platform.machine()} {_processor()}"
    raise RuntimeError(
        "custom kernels on a cpu device need a C++ compiler on the server, and there is none: "
        "install g++ (`apt install g++`, `dnf install gcc-c++`) or clang++, or name one in CXX"
    )


def _thread_locals(path: str) -> tuple[str, ...]:
    """The faster of the ways to reach thread-local variables (shared memory, threadIdx), where there are two.

    Before glibc 2.40 it can clobber vector registers once many binaries are loaded (glibc's bug 31372): wrong numbers.
    """
    fits = platform.machine() == "x86_64" and "clang" not in compiler()[1] and _glibc() >= (2, 40)
    return ("-mtls-dialect=gnu2",) if fits else ()


def _glibc() -> tuple[int, ...]:
    """The C library's version; () where it is another."""
    try:
        return tuple(map(int, (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1].split(".")))
    except (ValueError, OSError, IndexError):
        return ()


def _processor() -> str:
    """What ``-march=native`` depends on; the cache may be shared by hosts (a home directory)."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        return platform.processor()
    return hashlib.sha256("".join(sorted(set(lines))).encode()).hexdigest()


def _identity() -> str:
    return compiler()[1]


@functools.cache
def _headers() -> str:
    digest = hashlib.sha256()
    for path in sorted(HEADERS.rglob("*.*h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_directory() -> Path:
    """Where binaries are kept; nobody else may write there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "rgpu" / "kernels"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise RuntimeError(f"{path} must belong to you and be writable by nobody else (chmod 700)")
    return path


_loaded: dict[str, ctypes.CDLL] = {}


def load(source: str, options: tuple[str, ...] = (), *, shown: str = "", name: str = "kernel") -> ctypes.CDLL:
    """The shared object of a source; compiled if nobody has compiled it before.

    ``shown`` is the client's own text, for the exception. Raises CompileException.
    """
    path, identity = compiler()
    flags = (*_FLAGS, *_thread_locals(path), *options)
    if not any(flag.startswith("-std=") for flag in flags):
        flags = ("-std=c++17", *flags)
    key = hashlib.sha256("\0".join((identity, _headers(), *flags, source)).encode()).hexdigest()
    library = _loaded.get(key)
    if library is None:
        binary = cache_directory() / f"{key}.so"
        if binary.exists():
            os.utime(binary)  # used now: what is not makes room for others
        else:
            _compile(path, flags, source, binary, (shown or source, name, " ".join(options)))
            trim(binary.parent, CACHE_BYTES)
        library = ctypes.CDLL(str(binary))
        _native.divide_as_gpu(str(binary))
        _loaded[key] = library
    return library


def sweep(directory: Path) -> None:
    """Delete what compilations left behind whose worker was killed: folders older than any compilation gets."""
    oldest = time.time() - 4 * COMPILE_SECONDS
    for path in directory.glob(f"{_ASIDE}*"):
        with contextlib.suppress(OSError):  # another worker was faster
            if path.lstat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)


def _aside(directory: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder for one compilation, its compiler's own files included."""
    sweep(directory)
    return tempfile.TemporaryDirectory(dir=directory, prefix=_ASIDE)


def trim(directory: Path, limit: int) -> None:
    """Delete what was used longest ago until the rest fits four fifths of ``limit`` bytes, if it does not fit that.

    Processes that have a deleted binary loaded keep it. Headers made ready for other compilers count too.
    """
    found = []
    for path in (*directory.glob("*.so"), *directory.glob("headers-*/*.gch")):
        try:
            status = path.stat()
        except OSError:  # another worker was faster
            continue
        found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in sorted(found):
        if total <= limit * 4 // 5:
            return
        path.unlink(missing_ok=True)
        total -= size


def remarks(source: str, options: tuple[str, ...] = ()) -> str:
    """What the compiler has to say about a source that it accepts."""
    flags = tuple(flag for flag in _FLAGS if flag not in ("-w", "-shared"))
    command = [
        compiler()[0],
        "-std=c++17",
        *flags,
        *options,
        "-Wall",
        f"-isystem{HEADERS}",
        "-fsyntax-only",
        "-x",
        "c++",
        "-",
    ]
    done = subprocess.run(
        command, input=source, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
    )
    return done.stderr


def _precompiled(compiler: str, flags: tuple[str, ...]) -> list[str]:
    """Where to find the header ready made: four times faster. Made once by each user; g++ only, clang++ does without.

    A compiler that does not accept it for some other option reads the header itself.
    """
    if "clang" in compiler:
        return []
    fitting = tuple(flag for flag in flags if not flag.startswith(("-D", "-U")) or flag == FIBERS)
    key = hashlib.sha256("\0".join((_identity(), _headers(), "text beside", *fitting)).encode()).hexdigest()[:16]
    directory = cache_directory() / f"headers-{key}"
    header = directory / "rgpu_cuda.h.gch"
    if header.exists():
        os.utime(header)
    else:
        directory.mkdir(mode=0o700, exist_ok=True)
        # The compiler takes the binary for a first include only, and a later one's text from beside it.
        (directory / "rgpu_cuda.h").write_text("#include_next <rgpu_cuda.h>\n")
        with _aside(directory.parent) as aside:
            made = Path(aside) / header.name
            flags = tuple(flag for flag in fitting if flag != "-shared")
            command = [compiler, *flags, "-x", "c++-header", str(HEADERS / "rgpu_cuda.h"), "-o", str(made)]
            if _run(command, aside).returncode:
                return []
            os.replace(made, header)
    return [f"-I{directory}"]


def _run(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """A compiler, whose own files are in this folder."""
    environment = {**os.environ, "TMPDIR": folder}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False, env=environment
    )


def _compile(
    compiler: str, flags: tuple[str, ...], source: str, binary: Path, shown: tuple[str, str, str]
) -> None:
    with _aside(binary.parent) as directory:
        text, result = Path(directory) / "kernel.cu.cpp", Path(directory) / "kernel.so"
        text.write_text(source)
        includes = [*_precompiled(compiler, flags), f"-I{HEADERS}"]
        command = [compiler, *flags, *includes, str(text), "-o", str(result)]
        try:
            done = _run(command, directory)
        except subprocess.TimeoutExpired:
            raise CompileException(f"not compiled in {COMPILE_SECONDS} s", *shown, "nvrtc") from None
        if done.returncode:
            message = done.stderr.replace(f"{directory}/", "").replace(f"{HEADERS}/", "")
            raise CompileException(message[-20_000:], *shown, "nvrtc")
        os.replace(result, binary)


# ---- running on several cores -------------------------------------------------------------------


@functools.cache
def threads() -> int:
    """The cores this worker may use: the share the daemon gave it."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) else len(os.sched_getaffinity(0))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads() - 1, thread_name_prefix="rgpu-kernel")


def spread(run: Callable[[int, int], None], total: int, grain: int) -> None:
    """``run(first, last)`` over ranges that cover ``total``, on all cores if it is worth it.

    ``run`` is a function of ctypes, which lets go of the interpreter's lock.
    """
    parts = min(threads(), total // max(grain, 1))
    if parts <= 1:
        run(0, total)
        return
    ends = [total * k // parts for k in range(parts + 1)]
    others = [_pool().submit(run, ends[k], ends[k + 1]) for k in range(1, parts)]
    run(0, ends[1])
    for other in others:
        other.result()
