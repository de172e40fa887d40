"""What a session consists of, told in such a way that commands can make it again on another worker.

Arrays and views by their layouts, errors as they are, and objects by the call that made them, with their random
state, or by one that makes what they have become (``server.retelling``). Contents travel as those of any array do
(``Send``, ``Read``). What cannot be made again is named, never left out in silence. Nothing here changes the session
it describes, but for hidden handles of what its objects consist of.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.server import retelling
from rgpu.server.table import Poison
from rgpu.wire import codec, values

PAGE = 1024  # entries of one answer
TEXT = 4096  # characters of an error's traceback

#: what makes an object whose state is its arguments, and (random) a state that can be read
MAKERS = frozenset(
    """stream.create event.create memory.create_pool random.RandomState random.XORWOW random.MRG32k3a
    random.Philox4x3210 random.Generator kernel.elementwise kernel.reduction kernel.module
    kernel.module.symbol""".split()
)
_PLAIN = (bool, int, float, complex, str, tuple, list, np.ndarray, type(None))
STATEFUL = frozenset("random.RandomState random.XORWOW random.MRG32k3a random.Philox4x3210".split())


class Made:
    """How the objects of one session were made, as long as they live."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[Any, Any, tuple, dict]] = {}

    def note(self, thing: Any, function: Any, args: tuple, kwargs: dict) -> None:
        key = id(thing)
        try:
            self._calls[key] = weakref.ref(thing, lambda _: self._calls.pop(key, None)), function, args, kwargs
        except TypeError:
            pass  # of a class that cannot be watched: it will be said that it cannot be copied

    def of(self, thing: Any) -> tuple[Any, tuple, dict] | None:
        """(function, args, kwargs) of the call that made it."""
        found = self._calls.get(id(thing))
        return found[1:] if found is not None and found[0]() is thing else None


def remembered(backend: Any, function: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; what it makes can be made again."""
    thing = function.kind == "object" and function.name.startswith("cupyx.")
    if function.name not in MAKERS and not thing:
        return call
    if backend.made is None:
        backend.made = Made()
    made = backend.made

    def making(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if not thing:
            made.note(result, function, args, kwargs)
        elif not isinstance(result, _PLAIN):
            made.note(result, function, *retelling.without_arrays(backend, (args, kwargs)))
        return result

    return making


def entries(backend: Any, after: int, objects: bool = False) -> list:
    """The next PAGE entries of the table above handle ``after``, by handle. Each begins with its kind:
    ``array`` handle dtype shape strides (None: C order) nbytes; ``view`` handle root dtype shape strides offset;
    ``made`` handle function args kwargs state nbytes; ``poison`` handle where kind args text; ``left`` handle class.
    With ``objects`` also, to be made when the arrays have their contents: ``object`` and ``graph`` handle function
    args kwargs; and last the arrays that they consist of, under handles from ``retelling.HIDDEN`` on, which whoever
    asked frees."""
    table = backend.table
    named: dict[int, int] = {}
    if not after and backend.teller is not None:
        backend.teller.forget()
        backend.teller = None
    if objects and backend.teller is None:
        backend.teller = retelling.Teller(backend, lambda x, handle: _entry(backend, table, handle, x, named))
    handles = sorted(handle for handle in table.entries if after < handle < retelling.HIDDEN)[:PAGE]
    page = [_entry(backend, table, handle, table.peek(handle), named) for handle in handles]
    if page and not after and backend.recorder is not None and backend.recorder.busy:
        page.insert(0, ("left", 0, "capture that has not ended"))
    if page or not objects:
        return page
    hidden = backend.teller.entries
    return [hidden[handle] for handle in sorted(hidden) if handle > after][:PAGE]


def _entry(backend: Any, table: Any, handle: int, thing: Any, named: dict[int, int]) -> tuple:
    if isinstance(thing, Poison):
        return "poison", handle, list(thing.where), thing.kind, list(thing.arguments), thing.text[-TEXT:]
    how = backend.made.of(thing)
    if how is not None and how[0].name in MAKERS:
        return _made(backend, table, handle, thing, how, named)
    if not isinstance(thing, backend.array) or isinstance(thing, backend.borrowed):
        try:
            if backend.teller is not None:
                return backend.teller.tell(handle, thing, how)
        except (TypeError, AttributeError, ValueError):
            pass  # nobody can
        return "left", handle, type(thing).__name__
    layout = thing.dtype, tuple(thing.shape)
    root = table.root(handle)
    if root:
        offset = backend.address(thing) - backend.address(table.get(root)) if thing.size else 0
        return "view", handle, root, *layout, tuple(thing.strides), offset
    strides = None if thing.flags.c_contiguous else tuple(thing.strides)
    return "array", handle, *layout, strides, thing.nbytes


def _made(backend: Any, table: Any, handle: int, thing: Any, how: tuple, named: dict[int, int]) -> tuple:
    """An object by its call; other objects of the table that the call was given go by their handles."""
    function, args, kwargs = how
    if not named:
        known = table.entries.items()
        named.update((id(entry), number) for number, entry in known if backend.made.of(entry))

    def special(x: Any) -> Any:
        return [values.HANDLE, named[id(x)]] if id(x) in named else None

    try:
        wire = [values.encode(x, special) for x in args], {k: values.encode(x, special) for k, x in kwargs.items()}
        state = None
        if function.name in STATEFUL:
            read = backend.resolve("random.state")
            if read is None:
                return "left", handle, f"{type(thing).__name__} of a {backend.kind} device"
            state = read(thing)
    except TypeError:
        return "left", handle, type(thing).__name__
    return "made", handle, function.name, _wired(wire[0]), _wired(wire[1]), state, getattr(thing, "nbytes", 0)


def _wired(x: Any) -> bytes:
    """Arguments in wire form stay so on their way: to the client they mean nothing."""
    return codec.pack(x)


def templates(backend: Any) -> list:
    """What the client repeats: the fields of the commands that told of it."""
    return [(number, *template.told()) for number, template in backend.templates.items()]


def graphs(backend: Any) -> list[int]:
    """Of what the client repeats: graphs made, launched, segments refused, commands that launches stood for."""
    return [0, 0, 0, 0] if backend.graphs is None else backend.graphs.figures()


def _poison(_backend: Any, where: list, kind: str, args: list, text: str) -> None:
    """An error that came from elsewhere stands where it stood there."""
    raise Poison((int(where[0]), int(where[1])), str(kind), list(args), str(text))


#: by declared name; the first argument is the backend
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "session.entries": entries,
    "session.templates": templates,
    "session.graphs": graphs,
    "session.poison": _poison,
}
