"""A session of the cupy backend over the stand-in, and templates out of commands with changing numbers."""

import re

import numpy as np

from rgpu.server.executor import Executor
from rgpu.wire import codec, ops, values
from rgpu.wire.functions import BY_NAME

FN = {name: function.id for name, function in BY_NAME.items()}
_PLACE = re.compile(r"\?([mg])(-?\d+)$")


def new(k):
    """A handle that moves along with the base: the base + k."""
    return f"?m{k}"


def given(i):
    """The i-th value that a repetition brings."""
    return f"?g{i}"


def unary(name, out, a):
    return [ops.Unary.tag, FN[name], out, a]


def binary(name, out, a, b):
    return [ops.Binary.tag, FN[name], out, a, b]


def inplace(name, a, b):
    return [ops.Inplace.tag, FN[name], a, b]


def free(*handles):
    return [ops.Free.tag, list(handles)]


def view(out, root, shape, strides, offset, dtype="<f8"):
    return [ops.View.tag, out, root, dtype, list(shape), list(strides), offset]


def array(handle):
    return [values.HANDLE, handle]


def call(name, outs, *args, **kwargs):
    return [ops.Call.tag, FN[name], list(outs), list(args), kwargs]


def _places(x):
    """Placeholders, in the order in which they are written."""
    if isinstance(x, str) and _PLACE.match(x):
        yield x
    elif isinstance(x, list | tuple):
        for item in x:
            yield from _places(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from _places(item)


def template(commands, number=0):
    """The Template, and the order in which it wants its values."""
    rest, pieces, holes, data, order = b"".join(map(codec.pack, commands)), [], [], b"", []
    for place in _places(commands):
        before, found, rest = rest.partition(codec.pack(place))
        assert found
        data, pieces = data + before, [*pieces, len(before)]
        kind, x = _PLACE.match(place).groups()
        holes.append(int(x) if kind == "m" else None)
        order += [int(x)] if kind == "g" else []
    return ops.Template.encode(number, len(commands), data + rest, [*pieces, len(rest)], holes), order


def written_out(commands, base, brought):
    """The commands of one repetition."""

    def filled(x):
        if isinstance(x, str) and (found := _PLACE.match(x)):
            return base + int(found[2]) if found[1] == "m" else brought[int(found[2])]
        if isinstance(x, list | tuple):
            return [filled(item) for item in x]
        return {key: filled(item) for key, item in x.items()} if isinstance(x, dict) else x

    return [filled(command) for command in commands]


class Session:
    """One executor. ``graphs``: whether it has any."""

    def __init__(self, module, graphs=True, limit=0, card=16 << 20):
        self.cuda = module.cupy.cuda
        self.cuda.reset(card)
        self.machine = self.cuda.machine
        self.backend = module.CupyBackend(0, limit)
        if not graphs:
            self.backend.graphs = None
        self.graphs = self.backend.graphs
        self.answers = []
        self.executor = Executor(self.backend, self.answers.append)
        self._orders = {}

    def run(self, *commands):
        self.executor.run([codec.pack([9, list(commands)])])

    def put(self, handle, content):
        content = np.asarray(content)
        self.run(ops.Put.encode(handle, content.dtype.str, list(content.shape), content.tobytes()))

    def define(self, commands, number=0):
        message, self._orders[number] = template(commands, number)
        self.run(message)

    def replay(self, base, brought=(), number=0):
        self.run(ops.Replay.encode(number, base, [brought[i] for i in self._orders[number]]))

    def array(self, handle):
        return self.executor.table.get(handle).get()

    def contents(self):
        """Everything that the table holds, to the bit."""
        table = self.executor.table
        found = {}
        for handle, x in sorted(table.entries.items()):
            if isinstance(x, self.backend.array):
                host = x.get()
                found[handle] = (host.dtype.str, host.shape, x.strides, host.tobytes(), table.root(handle))
            else:
                found[handle] = type(x).__name__
        return found, table.used

    def failures(self):
        found = [ops.Reply.decode(codec.unpack(frames[0])) for frames in self.answers]
        return [(x.batch, x.index, x.kind, x.handles) for x in found if isinstance(x, ops.Failed.Record)]
