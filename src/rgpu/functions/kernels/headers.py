"""Headers of the client's own: the server that compiles a source does not have the directories of its ``-I`` options.

So what ``#include`` finds in them stands in the text that is sent. CUDA's and CuPy's own headers stay includes: the
server has those of its compiler.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

_LIMIT = 16 << 20
_FLAGS = ("--include-path", "-isystem", "-I")
#: a directory with one of these belongs to a toolkit
_TOOLKIT = ("cuda_runtime.h", "cupy/complex.cuh", "thrust/version.h", "cub/cub.cuh")
#: what an include could stand in without being one comes first
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|^[ \t]*#[ \t]*line[ \t]+(?P<number>\d+)(?:[ \t]+"(?P<file>[^"\n]*)")?'
    r'|^[ \t]*#[ \t]*include[ \t]*(?P<quote>["<])(?P<name>[^">\n]+)[">]'
    r'|"(?:\\.|[^"\\\n])*"',
    re.MULTILINE | re.DOTALL,
)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*", re.MULTILINE)


def inlined(code: str, options: tuple) -> str:
    """``code`` with the headers that its ``-I`` options name on this host; itself where there are none."""
    return _inlined(code, tuple(options)) if options and "include" in code else code


@functools.lru_cache(maxsize=256)
def _inlined(code: str, options: tuple) -> str:
    directories = [path for path in _directories(options) if not any((path / name).exists() for name in _TOOLKIT)]
    return _Expansion(directories).text(code, "kernel.cu", ()) if directories else code


def _directories(options: tuple) -> list[Path]:
    found, flag = [], False
    for option in map(str, options):
        known = next((prefix for prefix in _FLAGS if option.startswith(prefix)), None)
        value = option if flag else option[len(known) :].lstrip(" =") if known else ""
        flag = not flag and known is not None and not value
        if value and Path(value).is_dir():
            found.append(Path(value).resolve())
    return found


class _Expansion:
    """One source with its headers in their places; ``#line`` keeps the compiler's remarks true."""

    def __init__(self, directories: list[Path]) -> None:
        self._directories = directories
        self._size = 0

    def text(self, code: str, name: str, within: tuple[Path, ...]) -> str:
        """``code``, which is the file ``name``, inside the headers ``within``."""
        since, line = 0, 1  # where in the text the line number is known, and that number

        def replace(match: re.Match[str]) -> str:
            nonlocal since, line, name
            line += code.count("\n", since, match.start())
            since = match.start()
            if match["number"]:
                line, name = int(match["number"]) - 1, match["file"] or name
            path = match["name"] and self._find(match["quote"], match["name"], within)
            return self._header(path, within) + f'\n#line {line} "{name}"\n' if path else match[0]

        return _TOKENS.sub(replace, code)

    def _find(self, quote: str, name: str, within: tuple[Path, ...]) -> Path | None:
        beside = [within[-1].parent] if quote == '"' and within else []
        return next((path.resolve() for d in (*beside, *self._directories) if (path := d / name).is_file()), None)

    def _header(self, path: Path, within: tuple[Path, ...]) -> str:
        if path in within:  # its guard is up: it would be empty
            return ""
        text = path.read_text(errors="replace")
        self._size += len(text)
        if self._size > _LIMIT:
            raise ValueError(f"the headers of a kernel's source are more than {_LIMIT >> 20} MiB: {path}")
        guard = ""
        if _ONCE.search(text):
            text = _ONCE.sub("", text)
            guard = "RGPU_ONCE_" + hashlib.sha256(str(path).encode()).hexdigest()[:16]
        body = f'\n#line 1 "{path}"\n' + self.text(text, str(path), (*within, path))
        return f"\n#ifndef {guard}\n#define {guard}{body}\n#endif" if guard else body
