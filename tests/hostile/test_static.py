"""What the source must not contain: code out of bytes, checks that a flag removes, names chosen by the wire."""

import ast
import functools
from pathlib import Path

import pytest

import rgpu
from rgpu.wire import ops
from rgpu.wire.control import Control

SOURCE = Path(rgpu.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "code",
    "codeop",
    "runpy",
}
#: who may, and why
RUNPY = {"__main__.py"}  # `python -m rgpu script.py`: the user's own program, on the user's own machine
CALLS = {"eval", "exec", "__import__"}


@functools.cache
def trees():
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())) for path in FILES]


def test_nothing_that_runs_what_it_reads():
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                found.append(f"{path}:{node.lineno}: {node.func.id}()")
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and getattr(node.value, "value", 1):
                found.append(f"{path}:{node.lineno}: allow_pickle")
            elif isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", 1):
                found.append(f"{path}:{node.lineno}: a shell")
            allowed = RUNPY if path in RUNPY else set()
            found += [
                f"{path}: import {name}" for name in names if name in MODULES and not (allowed and name == "runpy")
            ]
    assert not found, "\n".join(found)


def _narrows(test):
    """``x is not None`` and ``isinstance(x, y)``: said for the type checker, never a check of what a peer sent."""
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], (ast.Is, ast.IsNot)) and ast.unparse(test.comparators[0]) == "None"
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def test_no_assert_is_a_check():
    """``python -O`` removes assertions: what guards something raises."""
    found = [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and not _narrows(node.test)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("room", ["wire", "session", "link"])
def test_no_attribute_by_a_name_in_the_rooms_that_read_bytes(room):
    """getattr with a name that is not written there would let a peer choose it; setattr and globals as well."""
    found = []
    for path, tree in trees():
        if not path.startswith(f"{room}/"):
            continue
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        found += [
            f"{path}:{call.lineno}: {ast.unparse(call)}"
            for call in calls
            if call.func.id in ("getattr", "setattr") and not isinstance(call.args[1], ast.Constant)
        ]
    known = {  # names out of a table of our own, never a peer's
        "wire/values.py": "getattr(ml_dtypes, text",
        "wire/classes.py": "getattr(cls, kind)",
        "link/tcp.py": "getattr(socket, f'TCP_{name}'",
    }
    found = [line for line in found if not any(line.startswith(path) and text in line for path, text in known.items())]
    assert not found, "\n".join(found)


def test_no_command_names_a_file_of_the_server():
    """Loading and saving are done by the client: no message but a grant has a field for a path."""
    for family, allowed in ((ops.Command, set()), (Control, {("Grant", "folder")})):
        for declared in family.registry.values():
            for field, _ in declared.fields:
                assert (declared.__name__, field) in allowed or field not in {"path", "file", "filename", "folder"}
