"""The names a jit kernel may use: indices of threads and blocks, barriers, shared memory, atomics, shuffles.

Only marks: they mean something inside a kernel, where ``_compile`` turns them into C. Called from ordinary
Python they refuse, as CuPy's do.
"""

from __future__ import annotations

from typing import Any


class Builtin:
    """A function of kernels: its name, and C's function behind it."""

    def __init__(self, kind: str, name: str, target: str = "") -> None:
        self.kind, self.__name__, self.target = kind, name, target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"cannot call `{self.__name__}` outside of a jit kernel")

    def __repr__(self) -> str:
        return f"<cupyx.jit function {self.__name__}>"


class Dim3:
    """``threadIdx`` and its kin; ``x``, ``y`` and ``z`` are read inside kernels."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<cupyx.jit {self.name}>"


threadIdx, blockIdx = Dim3("threadIdx"), Dim3("blockIdx")  # noqa: N816 (CuPy's names)
blockDim, gridDim = Dim3("blockDim"), Dim3("gridDim")  # noqa: N816
warpsize = Builtin("warpsize", "warpsize")
range_ = Builtin("range", "range")
grid, gridsize = Builtin("grid", "grid"), Builtin("grid", "gridsize")
laneid = Builtin("laneid", "laneid")
syncthreads = Builtin("barrier", "syncthreads", "__syncthreads")
syncwarp = Builtin("barrier", "syncwarp", "__syncwarp")
shared_memory = Builtin("shared", "shared_memory")
ATOMICS = {
    name: Builtin("atomic", f"atomic_{name}", f"atomic{c}")
    for name, c in (
        ("add", "Add"), ("sub", "Sub"), ("exch", "Exch"), ("min", "Min"), ("max", "Max"), ("inc", "Inc"),
        ("dec", "Dec"), ("cas", "CAS"), ("and", "And"), ("or", "Or"), ("xor", "Xor"),
    )
}  # fmt: skip
SHUFFLES = {name: Builtin("shuffle", f"shfl_{name}sync", f"__shfl_{name}sync") for name in ("", "up_", "down_", "xor_")}
