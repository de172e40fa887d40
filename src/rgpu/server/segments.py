"""Which commands of a template a device can run as one graph: pure, by what is declared, never by trying.

A segment is a run of commands whose work is on the device alone: element-wise functions and reductions with results
of their own, changes in place, views, frees. What reads, waits, uploads, calls a library that refuses to be captured
(products of matrices) or keeps a state of its own stays outside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME, TABLE

LEAST = 3  # commands that work on the device; fewer cost as much as the launch of a graph
CONSTANT, MOVING, GIVEN = range(3)  # what a place of a template holds: always the same, base + x, a Replay's value x

_RESULTS = frozenset(
    f.id for f in TABLE if f.kind in ("unary", "binary", "ufunc")
) | frozenset(
    BY_NAME[name].id
    for name in """sum prod mean std var max min amax amin any all argmax argmin around round nan_to_num clip
    ndarray.copy zeros ones full cupyx.rsqrt cupyx.scipy.special.erf cupyx.scipy.special.erfc
    cupyx.scipy.special.expit cupyx.scipy.special.logit""".split()
)  # fmt: skip
_ELEMENTWISE = frozenset(f.id for f in TABLE if f.kind in ("unary", "binary"))  # ``out=`` is all that they change
_WHERE, _GETITEM, _SETITEM = (BY_NAME[name].id for name in ("where", "ndarray.getitem", "ndarray.setitem"))
_ASTYPE, _FILL, _COPYTO = (BY_NAME[name].id for name in ("ndarray.astype", "ndarray.fill", "copyto"))
_KERNELS = frozenset(BY_NAME[name].id for name in ("kernel.elementwise.launch", "kernel.reduction.launch"))


class Ref(NamedTuple):
    """A number in a command, and how it is found at each repetition."""

    kind: int
    x: int


class Step(NamedTuple):
    """What one command does: handles it reads, changes, makes and frees, numbers that are no handles, kernels it uses.
    ``view``: it makes another array over the memory of what it reads."""

    reads: tuple[Ref, ...] = ()
    changed: tuple[Ref, ...] = ()
    made: tuple[Ref, ...] = ()
    freed: tuple[Ref, ...] = ()
    plain: tuple[Ref, ...] = ()
    kernel: Ref | None = None
    works: bool = True
    view: bool = False
    loose: tuple[Ref, ...] = ()  # those of ``reads`` that may be scalars instead


class _Refused(Exception):
    """A command that is not for a graph, and why."""


def named(template: Any) -> list | None:
    """A template's commands with a Ref where something else stands in each repetition; None: they cannot be read."""
    whole = b"".join(template.pieces)
    prefix = next(p for p in range(0xC001, 0xFFFF) if p.to_bytes(2, "big") * 3 not in whole)
    mark = int.from_bytes(prefix.to_bytes(2, "big") * 3, "big") << 16
    refs, given, parts = [], 0, [b"\xdd" + template.commands.to_bytes(4, "big"), template.pieces[0]]
    for n, (hole, piece) in enumerate(zip(template.holes, template.pieces[1:])):
        refs.append(Ref(GIVEN, given) if hole is None else Ref(MOVING, hole))
        given += hole is None
        parts += (codec.pack(mark | n), piece)

    def restored(x: Any) -> Any:
        if type(x) is int and x >> 16 == mark >> 16:
            return refs[x & 0xFFFF]
        if type(x) is list:
            return [restored(item) for item in x]
        return {key: restored(item) for key, item in x.items()} if type(x) is dict else x

    try:
        commands = codec.unpack(b"".join(parts))
    except Exception:  # whatever is wrong with it is told when it is used
        return None
    return restored(commands) if all(type(c) is list and c for c in commands) else None


def step(command: list) -> Step | str:
    """What a command does, or why no graph can do it."""
    try:
        make = _MAKERS.get(command[0]) if type(command[0]) is int else None
        if make is None:
            kind = ops.Command.registry.get(command[0]) if type(command[0]) is int else None
            raise _Refused("no command" if kind is None else f"{kind.__name__} is not the device's alone")
        return make(*command[1:])
    except _Refused as why:
        return str(why)
    except Exception:  # malformed: the gate says it
        return "not a command as declared"


def _handle(x: Any) -> Ref:
    if type(x) is Ref:
        return x
    if type(x) is not int or x < 1:
        raise _Refused("not a handle")
    return Ref(CONSTANT, x)


def _number(fn: Any) -> int:
    if type(fn) is not int:
        raise _Refused("another function each time")
    return fn


class _Fields:
    """Handles and other changing numbers in wire values."""

    def __init__(self) -> None:
        self.reads: list[Ref] = []
        self.plain: list[Ref] = []
        self.loose: tuple[Ref, ...] = ()

    def operand(self, x: Any) -> None:
        """A handle as a bare number, or a scalar; a Ref may be either each time."""
        if type(x) is Ref or type(x) is int:
            self.reads.append(_handle(x))
            self.loose += (x,) if type(x) is Ref and x.kind == GIVEN else ()
        else:
            self.value(x)

    def value(self, x: Any, handles: bool = True) -> None:
        if type(x) is Ref:
            self.plain.append(x)
        elif type(x) is list:
            tag = x[0]
            if tag == values.HANDLE:
                if not handles:
                    raise _Refused("an array where only numbers can be captured")
                self.reads.append(_handle(x[1]))
            elif tag in (values.TUPLE, values.LIST, values.SLICE):
                for item in x[1:]:
                    self.value(item, handles)
            elif tag in (values.INT, values.COMPLEX):
                self.plain += [item for item in x[1:] if type(item) is Ref]
            elif tag not in (values.DTYPE, values.ELLIPSIS, values.SCALAR) or _changing(x):
                raise _Refused("a value that a graph cannot keep")


def _changing(x: Any) -> bool:
    return type(x) is Ref or (type(x) is list and any(map(_changing, x)))


def _refs(x: Any) -> tuple[Ref, ...]:
    """The changing numbers among plain fields."""
    if type(x) is Ref:
        return (x,)
    return tuple(ref for item in x for ref in _refs(item)) if type(x) is list else ()


def _unary(fn: Any, out: Any, a: Any) -> Step:
    _number(fn)
    return Step((_handle(a),), made=(_handle(out),))


def _binary(fn: Any, out: Any, a: Any, b: Any) -> Step:
    _number(fn)
    fields = _Fields()
    fields.operand(a)
    fields.operand(b)
    return Step(tuple(fields.reads), made=(_handle(out),), plain=tuple(fields.plain), loose=fields.loose)


def _inplace(fn: Any, a: Any, b: Any) -> Step:
    _number(fn)
    fields, target = _Fields(), _handle(a)
    fields.operand(b)
    return Step((target, *fields.reads), (target,), plain=tuple(fields.plain), loose=fields.loose)


def _free(handles: Any) -> Step:
    return Step(freed=tuple(_handle(x) for x in handles), works=False)


def _empty(out: Any, dtype: Any, shape: Any, strides: Any) -> Step:
    return Step(made=(_handle(out),), plain=_refs([dtype, shape, strides]), works=False)


def _view(out: Any, root: Any, *layout: Any) -> Step:
    return Step((_handle(root),), made=(_handle(out),), plain=_refs(list(layout)), works=False, view=True)


def _call(fn: Any, outs: Any, args: Any, kwargs: Any) -> Step:
    fn, fields = _number(fn), _Fields()
    made = tuple(_handle(x) for x in outs)
    if fn in _KERNELS:
        return _kernel(fields, made, args, kwargs)
    target = _target(fn, made, args, kwargs)
    for position, x in enumerate(args):
        fields.value(x, handles=not (fn in (_GETITEM, _SETITEM) and position == 1))
    for name, x in kwargs.items():
        if not (target and name == "out"):
            fields.value(x, handles=False)
    reads = tuple(fields.reads)
    return Step((*reads, *target), target, made, plain=tuple(fields.plain))


def _target(fn: int, made: tuple, args: list, kwargs: dict) -> tuple[Ref, ...]:
    """What a call changes in place. Refused: those of which that is not known."""
    name = TABLE[fn].name if fn < len(TABLE) else str(fn)
    if made:
        known = fn in _RESULTS or fn == _GETITEM or (fn == _WHERE and len(args) == 3)
        if not known or "out" in kwargs:
            raise _Refused(f"{name} may do more than a graph can keep")
        return ()
    if fn in _ELEMENTWISE and type(kwargs.get("out")) is list and kwargs["out"][0] == values.HANDLE:
        return (_handle(kwargs["out"][1]),)
    if fn not in (_SETITEM, _ASTYPE, _FILL, _COPYTO) or kwargs or args[0][0] != values.HANDLE:
        raise _Refused(f"{name} changes what a graph cannot know")
    if fn == _FILL and type(args[1]) is list and args[1][0] == values.HANDLE:
        raise _Refused("a value to fill with that must be read")
    return (_handle(args[0][1]),)


def _kernel(fields: _Fields, made: tuple, args: list, kwargs: dict) -> Step:
    """A client's kernel: whatever it is given it may change."""
    if kwargs or args[0][0] != values.HANDLE:
        raise _Refused("a kernel in another form")
    kernel = _handle(args[0][1])
    for x in args[1:]:
        fields.value(x)
    reads = tuple(fields.reads)
    return Step(reads, reads, made, plain=tuple(fields.plain), kernel=kernel)


_MAKERS: dict[int, Any] = {
    ops.Unary.tag: _unary, ops.Binary.tag: _binary, ops.Inplace.tag: _inplace, ops.Free.tag: _free,
    ops.Empty.tag: _empty, ops.View.tag: _view, ops.Call.tag: _call,
}  # fmt: skip


class Segment:
    """The commands ``first`` to ``last`` (not included) of a template."""

    def __init__(self, first: int, steps: list[Step]) -> None:
        self.first, self.last, self.steps = first, first + len(steps), steps
        made: set[Ref] = set()
        inputs: dict[Ref, None] = {}  # what must be there before
        roots: dict[Ref, Ref] = {}
        changed: dict[Ref, None] = {}
        everything: dict[Ref, None] = {}
        for one in steps:
            for ref in (*one.reads, *one.changed):
                if ref not in made:
                    inputs[ref] = None
            if one.view:
                roots[one.made[0]] = one.reads[0]
            for ref in one.changed:
                changed[roots.get(ref, ref)] = None
                changed[ref] = None
            made.update(one.made)
            kernel = (one.kernel,) if one.kernel else ()
            everything.update(dict.fromkeys((*one.reads, *one.changed, *one.made, *one.freed, *kernel)))
        self.inputs, self.made = tuple(inputs), made
        self.changed = tuple(ref for ref in changed if ref in inputs)
        self.refs = tuple(everything)
        self.loose = {ref for one in steps for ref in one.loose}
        self.plain = tuple(dict.fromkeys(ref for one in steps for ref in one.plain))
        self.kernels = tuple(dict.fromkeys(one.kernel for one in steps if one.kernel))


def cut(commands: list, barred: dict[int, str]) -> tuple[list[Segment], dict[int, str]]:
    """The segments of a template, and why the other commands are in none. ``barred``: those that were found to be
    for no graph."""
    found: list[Segment] = []
    steps: list[Step] = []
    reasons: dict[int, str] = {}
    for n, command in enumerate([*commands, []]):
        one = barred[n] if n in barred else step(command) if command else "the end"
        if isinstance(one, Step):
            steps.append(one)
            continue
        if command:
            reasons[n] = one
        if sum(s.works for s in steps) >= LEAST:
            found.append(Segment(n - len(steps), steps))
        elif steps:
            reasons.update(dict.fromkeys(range(n - len(steps), n), "too few commands between others"))
        steps = []
    return found, reasons
