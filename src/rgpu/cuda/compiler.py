"""``cupy.cuda.compiler``: the errors of compiling kernels; the compiler itself runs on the worker.

Names of CuPy's that are not here raise NotImplementedError with their name when used.
"""

from __future__ import annotations

from typing import Any

from rgpu import surface
from rgpu.client.failures import KINDS
from rgpu.cuda.errors import rebuild


class CompileException(Exception):
    """A kernel that does not compile; ``str`` gives the compiler's messages."""

    __module__ = "cupy.cuda.compiler"

    def __init__(
        self, msg: str, source: str = "", name: str = "", options: Any = (), backend: str = "nvrtc"
    ) -> None:
        super().__init__()
        if isinstance(options, str):  # as a worker tells them
            options = tuple(options.split())
        self._msg, self.source, self.name, self.options, self.backend = msg, source, name, options, backend

    def __str__(self) -> str:
        return self.get_message()

    def __reduce__(self) -> Any:
        return rebuild, (type(self).__name__, (self._msg, self.source, self.name, self.options, self.backend))

    def get_message(self) -> str:
        return self._msg

    def dump(self, f: Any) -> None:
        """Write the source, with line numbers, and the messages to a file."""
        lines = self.source.split("\n")
        f.write(f"{self.backend.upper()} compilation error: {self}\n-----\nName: {self.name}\n")
        f.write(f"Options: {' '.join(self.options)}\nCUDA source:\n")
        f.writelines(f"{number:>{len(str(len(lines)))}} {line}\n" for number, line in enumerate(lines, 1))
        f.write("-----\n")
        f.flush()


class NVCCException(Exception):
    """nvcc failed."""

    __module__ = "cupy.cuda.compiler"


class JitifyException(Exception):
    """The preprocessor failed."""

    __module__ = "cupy.cuda.compiler"


class HIPCCException(Exception):
    """hipcc failed."""

    __module__ = "cupy.cuda.compiler"


for _kind in (CompileException, NVCCException, JitifyException, HIPCCException):
    KINDS[_kind.__name__] = _kind

__getattr__, __dir__ = surface.face(__name__)
