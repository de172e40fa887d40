"""Where the text of a kernel's function is: a ``def`` in a file, a notebook or a doctest, or a lambda.

Reads source, and knows nothing of what it means.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any


def parse(function: Callable[..., Any]) -> ast.FunctionDef:
    """The function's syntax tree; a lambda becomes a function that returns. ValueError where there is no text."""
    if function.__name__ == "<lambda>":
        return _lambda(function)
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError, IndexError):
        raise ValueError(f"the source of {function.__name__} cannot be read: a kernel needs a file") from None
    tree = ast.parse(text).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise NotImplementedError(f"{function.__name__}: async functions cannot be kernels")
    return tree


def _lambda(function: Callable[..., Any]) -> ast.FunctionDef:
    """A lambda by the line it begins on: its own lines alone may not be a statement."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse("".join(linecache.getlines(inspect.getsourcefile(function) or "")))
    except (OSError, TypeError, SyntaxError):
        raise ValueError(f"the source of {function} cannot be read: a kernel's function needs a file") from None
    last = first + len(lines)
    found = [x for x in ast.walk(tree) if isinstance(x, ast.Lambda) and first <= x.lineno < last]
    if len(found) != 1:
        raise ValueError(
            f"Multiple callables are found near the definition of {function}: which of them is it? Use `def`"
            if found else f"the source of {function} cannot be found"
        )  # fmt: skip
    body = ast.copy_location(ast.Return(found[0].body), found[0].body)
    return ast.copy_location(
        ast.FunctionDef(name="lambda", args=found[0].args, body=[body], decorator_list=[]), found[0]
    )
