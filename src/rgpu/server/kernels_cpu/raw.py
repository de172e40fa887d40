"""Raw kernels and modules: CUDA C++ compiled as it is, launched by grid and block.

The text is only rearranged where C++ has no word for it: includes move to the front, ``extern "C"`` goes (the
names live in a namespace), dynamic shared memory becomes a pointer. Every ``__global__`` function gets an entry.
"""

from __future__ import annotations

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rgpu.server.kernels_cpu import build
from rgpu.server.kernels_cpu.loops import compiler_options, namespaced

MOST_THREADS = 1024
MOST_TOGETHER = 64  # blocks of a cooperative launch: each has a thread of the system
DYNAMIC_SHARED = 256 << 10  # rgpu_threads.h
_BARRIER = re.compile(
    r"__sync(?:threads|warp)|__shfl|__ballot|__any|__all|__activemask|__match_|__reduce_\w+_sync|cooperative_groups|<cub/"
)
_DYNAMIC = re.compile(
    r"\bextern\s+__shared__\s+((?:__align__\s*\([^)]*\)\s*)?)([\w:<>,\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;",
    re.DOTALL,
)
_GLOBAL = re.compile(r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:static\s+|inline\s+)*void\s+"
                     r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")  # fmt: skip
_SYMBOL = re.compile(r"(?:__constant__|__device__|__managed__)\s+(?:__\w+__\s+|static\s+|volatile\s+)*"
                     r"[\w:<>]+(?:\s+(?:int|char|long|short|double))*[\s*]+(?!operator\b)(\w+)\s*(?:\[[^;(]*\])*\s*(?:=[^;]*)?;")  # fmt: skip
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.*\b__global__.*)$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class _Entry(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("run", ctypes.c_void_p),
    ]


class _Symbol(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class CUDADriverError(RuntimeError):
    """What the driver would say; ``status`` is its number, as CuPy's class of this name has it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status)
        self.status = status
        self.add_note(why)


class Source:
    """What the text of a module declares."""

    def __init__(self, code: str) -> None:
        bare = _COMMENT.sub(" ", code)
        self.fibers = bool(_BARRIER.search(bare))
        self.kernels = self._external(_named(bare), _GLOBAL)
        self.symbols = list(dict.fromkeys(_SYMBOL.findall(bare)))
        self.text = self._translate(code)

    @staticmethod
    def _external(code: str, pattern: re.Pattern) -> list[str]:
        """Kernels that can be found by their plain name: those declared ``extern "C"``."""
        found, blocks = [], _c_blocks(code)
        for match in pattern.finditer(code):
            before = code[max(0, match.start() - 200) : match.start()]
            own = re.search(r'extern\s+"C"\s*(?:__\w+__\s*|static\s+|inline\s+)*$', before)
            if own or any(first < match.start() < last for first, last in blocks):
                found.append(match[1])
        return list(dict.fromkeys(found))

    @staticmethod
    def _translate(code: str) -> str:
        def dynamic(match: re.Match) -> str:
            _, kind, name = match.groups()
            inside = code[: match.start()].count("{") > code[: match.start()].count("}")
            storage = "" if inside else "static thread_local "
            return f"{storage}{kind}* const {name} = reinterpret_cast<{kind}*>(rgpu::dynamic_shared);"

        text = _DYNAMIC.sub(dynamic, code)
        text = re.sub(r'extern\s+"C"\s*\{', "inline namespace rgpu_c {", text)
        return re.sub(r'extern\s+"C"', "", text)


def _named(code: str) -> str:
    """The text with those macros written out that stand for ``__global__``."""
    for name, meaning in _MACRO.findall(code):
        escaped = meaning.replace("\\", r"\\")
        code = re.sub(rf"(?<!define)(?<!ifdef)(?<!ifndef)(\s){name}\b", rf"\g<1>{escaped}", code)
    return code


def _c_blocks(code: str) -> list[tuple[int, int]]:
    """Where ``extern "C" { ... }`` begins and ends."""
    blocks = []
    for match in re.finditer(r'extern\s+"C"\s*\{', code):
        depth, end = 1, match.end()
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        blocks.append((match.start(), end))
    return blocks


class Variable(np.ndarray):
    """The memory of a module's variable."""


class Module:
    """One compiled source. Compiles at the first launch or question, not before."""

    def __init__(self, code: str, options: Any, names: tuple, *_: Any) -> None:
        build.check_allowed()
        self.code, self.options, self.names = code, tuple(options or ()), tuple(names or ())
        self._library: ctypes.CDLL | None = None
        self._built: tuple[str, tuple[str, ...]] = "", ()
        self._entries: dict[str, tuple[Any, list[int]]] = {}

    def load(self) -> None:
        """Compile. Raises CompileException."""
        if self._library is not None:
            return
        source = Source(self.code)
        expressions = list(dict.fromkeys((*source.kernels, *self.names)))
        text = [namespaced(source.text)]
        for k, expression in enumerate(expressions):
            text.append(
                'namespace rgpu_user { extern "C" __attribute__((visibility("default"))) const rgpu::Entry '
                f"rgpu_kernel_{k} = rgpu::Kernel<&{expression}>::entry; }}"
            )
        for name in source.symbols:
            text.append(
                'namespace rgpu_user { extern "C" __attribute__((visibility("default"))) const rgpu::Symbol '
                f"rgpu_symbol_{name} = {{&{name}, (int64_t)sizeof({name})}}; }}"
            )
        options = (*compiler_options(self.options), *((build.FIBERS,) if source.fibers else ()))
        self._built = "\n".join(text), options
        self._library = build.load(*self._built, shown=self.code, name="module")
        for k, expression in enumerate(expressions):
            entry = _Entry.in_dll(self._library, f"rgpu_kernel_{k}")
            self._entries[expression] = _RUN(entry.run), [entry.sizes[i] for i in range(entry.count)]

    def remarks(self) -> str:
        """The compiler's warnings."""
        self.load()
        return build.remarks(*self._built)

    def function(self, name: str) -> dict[str, int]:
        """Attributes of a kernel, as CuPy names them. Raises CUDADriverError for one that is not there."""
        self._entry(name)
        return {
            "max_threads_per_block": MOST_THREADS, "shared_size_bytes": 0, "const_size_bytes": 0, "local_size_bytes": 0,
            "num_regs": 32, "ptx_version": 70, "binary_version": 70, "cache_mode_ca": 0,
            "max_dynamic_shared_size_bytes": DYNAMIC_SHARED, "preferred_shared_memory_carveout": -1,
        }  # fmt: skip

    def symbol(self, name: str) -> np.ndarray:
        """The bytes of a ``__constant__`` or ``__device__`` variable."""
        self.load()
        try:
            found = _Symbol.in_dll(self._library, f"rgpu_symbol_{name}")
        except ValueError:
            raise CUDADriverError(500, f"the module has no variable {name!r}") from None
        return np.frombuffer((ctypes.c_uint8 * found.bytes).from_address(found.address), np.uint8).view(
            Variable
        )

    def _entry(self, name: str) -> tuple[Any, list[int]]:
        self.load()
        found = self._entries.get(name)
        if found is None:
            raise CUDADriverError(
                500, f"the module has no kernel {name!r}; it has {', '.join(self._entries) or 'none'}"
            )
        return found

    def launch(
        self, name: str, grid: tuple, block: tuple, arguments: tuple, shared: int, cooperative: bool
    ) -> None:
        """Run every thread of the grid; arguments are arrays (pointers) and scalars or structs (by value).

        ``cooperative``: all blocks at once, so that they can wait for one another; a grid of one axis that has too
        many of them is made smaller, as CuPy does.
        """
        run, sizes = self._entry(name)
        if np.prod(block, dtype=object) > MOST_THREADS:
            raise CUDADriverError(1, f"a block of {block} has more than {MOST_THREADS} threads")
        if shared > DYNAMIC_SHARED:
            raise CUDADriverError(1, f"{shared} bytes of dynamic shared memory; there are {DYNAMIC_SHARED}")
        if len(arguments) < len(sizes):
            raise CUDADriverError(
                1, f"{name} has {len(sizes)} parameters, {len(arguments)} arguments were given"
            )
        packed, places = bytearray(), []
        for size, argument in zip(sizes, arguments):
            data = argument.tobytes() if size <= 8 or not isinstance(argument, Pointer) else argument.described()
            packed.extend(b"\0" * (-len(packed) % 16))
            places.append(len(packed))
            packed.extend(data.ljust(max(size, 8), b"\0"))
        memory = np.zeros(len(packed) + 16, np.uint8)
        start = -memory.ctypes.data % 16
        memory[start : start + len(packed)] = np.frombuffer(packed, np.uint8)
        table = np.array([memory.ctypes.data + start + place for place in places] or [0], np.int64)
        cooperative = cooperative and hasattr(self._library, "rgpu_together")
        if cooperative:
            grid = _resident(grid)
        geometry = np.array([*grid, *block, shared], np.int64)
        blocks, at, where = int(np.prod(grid, dtype=object)), geometry.ctypes.data, table.ctypes.data
        if cooperative:
            self._library.rgpu_together(ctypes.c_int64(blocks))  # type: ignore[union-attr]
            with ThreadPoolExecutor(blocks, thread_name_prefix="rgpu-block") as threads:
                list(threads.map(lambda k: run(at, where, k, k + 1), range(blocks)))
            return
        build.spread(lambda first, last: run(at, where, first, last), blocks, 1 + 4096 // int(np.prod(block)))


def _resident(grid: tuple) -> tuple:
    """A grid that this device can hold as a whole. Raises ValueError where it cannot be made to fit."""
    if np.prod(grid, dtype=object) <= MOST_TOGETHER:
        return grid
    if grid[1] != 1 or grid[2] != 1:
        shape = " * ".join(map(str, grid))
        raise ValueError(f"The specified grid size ({shape}) exceeds the limit ({MOST_TOGETHER}).")
    return MOST_TOGETHER, 1, 1


class Pointer:
    """An array of the device as an argument: a pointer, or CuPy's ``CArray`` where the parameter is one."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def tobytes(self) -> bytes:
        return self._array.ctypes.data.to_bytes(8, "little")

    def described(self) -> bytes:
        """The members of a ``CArray`` (rgpu_arrays.h): data, size, shape, strides."""
        array = self._array
        shape, strides = array.shape or (0,), array.strides or (0,)
        return self.tobytes() + np.array([array.size, *shape, *strides], np.int64).tobytes()
