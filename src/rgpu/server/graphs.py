"""Repetitions as graphs of the device: what a segment of a template launches is captured once and launched as one.

Knows no CUDA: ``device`` does the few calls (``server.cupy_graphs``). A graph belongs to the addresses it was captured
with, and is used only after its results were the same, bit for bit, as those of the commands run one by one. Whatever
is unusual in any way runs as it always did (docs/adr/0014).
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

from rgpu.server import plans
from rgpu.server.plans import Allocation, Birth, Make, Plan
from rgpu.server.segments import CONSTANT, MOVING, Ref, Segment, cut, named
from rgpu.server.table import PureTable
from rgpu.wire import codec

log = logging.getLogger("rgpu.worker")

GRAPHS = 8  # kept of one plan, each for its own addresses
ALL_GRAPHS = 256  # of the session
PLANS = 4  # of one segment, each for its own layouts
RING = 4  # memory kept for one result: that of some of its repetitions may be in use
SIGHTS = 64  # addresses remembered of one plan
STRANGE = 16  # layouts or numbers that never came again, after which a segment is cut anew or given up
WANDER = 12  # runs of a plan without one launch, after which it is cut around what is elsewhere each time
IDLE = 48  # runs of a plan without one launch, after which its segment is given up
DROPS = 3  # times that memory was short, after which the session has no graphs any more


class _Here(NamedTuple):
    """A segment at one repetition: its numbers, its arrays and kernels, and what decides which plan and graph suit."""

    numbers: dict[Ref, int]
    inputs: dict[Ref, Any]
    kernels: dict[int, Any]
    signature: tuple
    addresses: tuple


class _Planned:
    """A plan in use."""

    def __init__(self, plan: Plan, kernels: tuple) -> None:
        self.plan, self.kernels = plan, kernels  # kept: a signature names them by their identity
        self.block: Any = None
        self.rings: list[list] = [[] for _ in plan.outs]  # memory that results had before, each in its own place
        self.graphs: OrderedDict[tuple, Any] = OrderedDict()
        self.seen: OrderedDict[tuple, None] = OrderedDict()
        self.idle = 0


class _Part:
    """A segment and what is known of it. ``why``: it is for no graph."""

    def __init__(self, segment: Segment) -> None:
        self.segment, self.why = segment, ""
        self.plans: OrderedDict[tuple, _Planned | None] = OrderedDict()
        self.values: dict[Ref, set] = {}  # of the numbers that are no handles
        self.strange = 0


class _Cut:
    """A template and its segments."""

    def __init__(self, template: Any) -> None:
        self.template, self.commands = template, named(template)
        self.barred: dict[int, str] = {}
        self.parts: list[_Part] = []
        self.again()

    def again(self) -> None:
        """The segments, without the commands that are barred."""
        segments, reasons = cut(self.commands, self.barred) if self.commands is not None else ([], {})
        self.parts = [_Part(segment) for segment in segments]
        if log.isEnabledFor(logging.DEBUG):
            for n, why in reasons.items():
                log.debug("command %d of a template is in no graph: %s", n, why)


class Server:
    """Gives a plan's memory to those who allocate while its commands run."""

    def __init__(self, device: Any, planned: _Planned, outs: list) -> None:
        self._device, self._plan, self._block, self._outs = device, planned.plan, planned.block, outs
        self._ordinary = device.allocator()
        self._expected: list = []
        self._temporary: list[tuple[int, Any]] = []
        self._alone = self._references([(0, object())])[0][1]
        self.exact = True  # all was as planned so far

    @staticmethod
    def _references(temporary: list[tuple[int, Any]]) -> list[tuple[int, int]]:
        """Last step and references of each memory, ours among them."""
        return [(last, sys.getrefcount(memory)) for last, memory in temporary]

    def at(self, n: int) -> None:
        """The commands before step ``n`` have run."""
        if self._expected or any(last < n and held > self._alone for last, held in self._references(self._temporary)):
            self.exact = False
        self._temporary = [x for x in self._temporary if x[0] >= n]
        self._expected = self._plan.serves[n][::-1] if n < len(self._plan.serves) else []

    def __call__(self, size: int) -> Any:
        if not (size and self.exact):
            return self._ordinary(size)
        if not self._expected or self._expected[-1][0] != size:
            self.exact = False
            return self._ordinary(size)
        _, out, offset, last = self._expected.pop()
        if out >= 0:
            return self._outs[out]
        pointer = self._device.part(self._block, offset, size)
        self._temporary.append((last, pointer.mem))
        return pointer


class Graphs:
    """Those of one session."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.captured = self.launched = self.refused = self.commands = 0
        self.off = ""  # why there are none any more
        self._cuts: dict[int, _Cut] = {}
        self._block: Any = None  # scratch memory, of all plans that it is large enough for
        self._room = self._drops = self._failed = 0
        self._kept = 0  # graphs made since they were counted last

    def figures(self) -> list[int]:
        """Graphs made, launched, segments refused, commands that launches stood for."""
        return [self.captured, self.launched, self.refused, self.commands]

    def drop(self, short: bool = True) -> bool:
        """Forget everything. ``short``: memory is wanted urgently. Whether there was anything."""
        held = self._block is not None
        for found in self._cuts.values():
            for part in found.parts:
                part.plans.clear()
        self._cuts.clear()
        self._block, self._room, self._kept = None, 0, 0
        if held and short:
            self._drops += 1
            if self._drops >= DROPS:
                self.off = "memory was short too often"
        return held

    def run(self, executor: Any, place: tuple[int, int], number: int, base: int, given: list, commands: list) -> None:
        """The commands of a repetition, of which ``place`` is (batch, index of the first)."""
        at = 0
        for part in self._parts(executor, number):
            segment = part.segment
            self._plainly(executor, place, commands, at, segment.first)
            at = segment.last
            if part.why or not self._ready(executor) or not self._segment(executor, place, part, base, given, commands):
                self._plainly(executor, place, commands, segment.first, at)
        self._plainly(executor, place, commands, at, len(commands))

    def _plainly(self, executor: Any, place: tuple[int, int], commands: list, first: int, last: int) -> None:
        batch, index = place
        for n in range(first, last):
            executor._run(batch, index + n, commands[n])

    def _ready(self, executor: Any) -> bool:
        return not self.off and executor.standing[1] == 1 and self.device.ready()

    def _parts(self, executor: Any, number: int) -> list[_Part]:
        template = executor.templates.get(number)
        found = self._cuts.get(number)
        if found is None or found.template is not template:
            found = self._cuts[number] = _Cut(template)
        return list(found.parts)

    # What is there

    def _look(self, executor: Any, segment: Segment, base: int, given: list) -> _Here | None:
        """None: something is not as it must be, which the commands themselves will say."""
        numbers: dict[Ref, int] = {}
        order: dict[int, int] = {}
        plain = [codec.pack(_value(ref, base, given)) for ref in segment.plain]
        pattern = []
        for ref in segment.refs:
            value = _value(ref, base, given)
            if type(value) is int and value > 0:
                numbers[ref] = value
                pattern.append(order.setdefault(value, len(order)))
            elif type(value) is not int and ref in segment.loose:
                plain.append(codec.pack(value))
                pattern.append(-1)
            else:
                return None
        peek, array = executor.table.peek, self.device.array
        inputs = {}
        for ref in segment.inputs:
            if ref in numbers:
                entry = peek(numbers[ref])
                if type(entry) is not array or not entry.size:
                    return None
                inputs[ref] = entry
        if any(peek(numbers[ref]) is not None for ref in segment.made if ref in numbers):
            return None
        kernels = {}
        for ref in segment.kernels:
            kernels[numbers[ref]] = peek(numbers[ref])
        if not all(self.device.stateless(kernel) for kernel in kernels.values()):
            return None
        layouts = tuple((x.shape, x.strides, x.dtype) for x in inputs.values())
        signature = tuple(plain), tuple(pattern), layouts, tuple(map(id, kernels.values()))
        address = self.device.address
        return _Here(numbers, inputs, kernels, signature, tuple(address(x) for x in inputs.values()))

    # One segment

    def _segment(
        self, executor: Any, place: tuple[int, int], part: _Part, base: int, given: list, commands: list
    ) -> bool:
        """Run it, in whatever way. False: nothing has happened, and it is for the ordinary way."""
        here = self._look(executor, part.segment, base, given)
        if here is None:
            return False
        if here.signature not in part.plans:
            self._stranger(executor, part, here, base, given)
            return False
        part.plans.move_to_end(here.signature)
        run = _Run(self, executor, place, part, here, commands)
        planned = part.plans[here.signature]
        if planned is None:
            part.plans[here.signature] = run.observe()
            return True
        table = executor.table
        if table.limit and table.used + planned.plan.peak > table.limit:
            return False
        if planned.block is None and not self._settle_in(part, planned):
            return False
        try:
            outs = [self._out(size, ring) for size, ring in zip(planned.plan.outs, planned.rings)]
        except MemoryError:
            return False
        key = here.addresses + tuple(pointer.ptr for pointer in outs)
        graph = planned.graphs.get(key)
        if graph is None:
            run.planned(planned, outs, key)
            return True
        planned.graphs.move_to_end(key)
        planned.idle = 0
        executor.settle()
        try:
            self.device.launch(graph)
        except Exception as error:  # nothing has happened; the commands will tell what is wrong
            self.off = f"a launch failed: {error}"
            return False
        self.launched += 1
        self.commands += len(part.segment.steps)
        run.tell(planned.plan, outs)
        return True

    def _stranger(self, executor: Any, part: _Part, here: _Here, base: int, given: list) -> None:
        """Layouts or numbers that have not been seen."""
        segment = part.segment
        part.plans[here.signature] = None
        part.strange += 1
        for ref in (*segment.plain, *segment.loose):
            values = part.values.setdefault(ref, set())
            if ref not in here.numbers and len(values) < 3:
                values.add(codec.pack(_value(ref, base, given)))
        while len(part.plans) > PLANS:
            part.plans.popitem(last=False)
        if part.strange < STRANGE:
            return
        changing = {ref for ref, values in part.values.items() if len(values) > 2}
        barred = {
            segment.first + n: "a number that changes each time"
            for n, step in enumerate(segment.steps)
            if changing.intersection((*step.plain, *step.loose))
        }
        if barred:
            self.bar(part, barred)
        else:
            self.give_up(part, "other layouts each time")

    def give_up(self, part: _Part, why: str) -> None:
        log.debug("commands %d to %d of a template are no graph: %s", part.segment.first, part.segment.last, why)
        part.why = why
        part.plans.clear()
        self.refused += 1

    def bar(self, part: _Part, commands: dict[int, str]) -> None:
        """These commands are for no graph; the template is cut around them from its next repetition on."""
        self.give_up(part, next(iter(commands.values())))
        for found in self._cuts.values():
            if any(part is x for x in found.parts):
                found.barred.update(commands)
                found.again()

    def _settle_in(self, part: _Part, planned: _Planned) -> bool:
        """Scratch memory for a plan."""
        total = planned.plan.total
        if total > self._room or self._block is None:
            if not self.device.may_hold(total):
                self.give_up(part, f"{total} bytes of scratch memory")
                return False
            try:
                self._block, self._room = self.device.block(total), total
            except MemoryError:
                self.give_up(part, "no scratch memory")
                return False
        planned.block = self._block
        return True

    def _out(self, size: int, ring: list) -> Any:
        """Memory for a result: where it was before, as soon as nobody has that any more, so that the addresses of a
        loop come again whatever else the session allocates. Raises CuPy's OutOfMemoryError."""
        pointer = _unused(ring)
        if pointer is None:
            pointer = self.device.allocate(size)
            if len(ring) < RING:
                ring.append(pointer)
        return self.device.part(pointer, 0, size)

    def keep(self, planned: _Planned, key: tuple, graph: Any) -> None:
        """A graph that has proven itself."""
        self.captured += 1
        planned.graphs[key] = graph
        while len(planned.graphs) > GRAPHS:
            planned.graphs.popitem(last=False)
        self._kept += 1
        if self._kept >= ALL_GRAPHS:  # among them those that were forgotten since
            everything = [p for c in self._cuts.values() for x in c.parts for p in x.plans.values() if p is not None]
            self._kept = sum(len(p.graphs) for p in everything)
            if self._kept >= ALL_GRAPHS:
                for p in everything:
                    p.graphs.clear()
                self._kept = 0

    def failed(self, error: BaseException) -> None:
        """Nothing could be captured."""
        self._failed += 1
        if self._failed >= 8 and not self.captured:
            self.off = f"nothing can be captured here: {error}"

    def abandon(self, part: _Part, why: str) -> None:
        """Somebody holds scratch memory: nobody else may use it again."""
        self.give_up(part, why)
        self._block, self._room = None, 0
        for found in self._cuts.values():
            for other in found.parts:
                other.plans.clear()


class _Run:
    """A segment's commands at one repetition, run one by one."""

    def __init__(
        self, graphs: Graphs, executor: Any, place: tuple[int, int], part: _Part, here: _Here, commands: list
    ) -> None:
        self._graphs, self._executor, self._place, self._part, self._here = graphs, executor, place, part, here
        self._device = graphs.device
        segment = part.segment
        self._commands = commands[segment.first : segment.last]
        self._failures = executor.failures

    @property
    def _well(self) -> bool:
        return self._executor.failures == self._failures

    def _step(self, n: int) -> None:
        batch, index = self._place
        self._executor._run(batch, index + self._part.segment.first + n, self._commands[n])
        self._executor.arguments.clear()

    def observe(self) -> _Planned | None:
        """As always, noting who asks for memory. The plan; None: there can be none yet."""
        self._here.inputs.clear()  # what is freed on the way is free
        allocations: list[Allocation] = []
        births: list[Birth] = []
        ordinary, n = self._device.allocator(), 0

        def noting(size: int) -> Any:
            pointer = ordinary(size)
            if size:
                allocations.append(Allocation(n, size, pointer.ptr))
            return pointer

        segment, numbers, peek = self._part.segment, self._here.numbers, self._executor.table.peek
        with self._device.serving(noting):
            for n, step in enumerate(segment.steps):
                self._step(n)
                for ref in step.made:
                    x = peek(numbers.get(ref))
                    if type(x) is self._device.array:
                        layout = x.shape, x.dtype, x.strides
                        births.append(Birth(n, ref, numbers[ref], self._device.address(x), x.nbytes, layout))
        if not self._well:
            return None
        found = plans.plan(segment, numbers, allocations, births)
        if isinstance(found, str):
            self._graphs.give_up(self._part, found)
            return None
        return _Planned(found, tuple(self._here.kernels.values()))

    def planned(self, planned: _Planned, outs: list, key: tuple) -> None:
        """One by one, with the memory of a graph; at the second sight of these addresses with the proof of one."""
        graphs, part = self._graphs, self._part
        again = key in planned.seen
        planned.seen[key] = None
        planned.seen.move_to_end(key)
        if len(planned.seen) > SIGHTS:
            planned.seen.popitem(last=False)
        planned.idle += 1
        if planned.idle > IDLE:
            graphs.give_up(part, "other addresses each time")
        elif planned.idle == WANDER:
            self._cut_around(planned)
        proof = self._device.proof() if again and not part.why else None
        try:
            if proof is not None:
                inputs = self._here.inputs
                spans = [self._device.span(inputs[ref]) for ref in part.segment.changed if ref in inputs]
                proof.before(spans, list(zip(outs, planned.plan.outs)))
        except MemoryError:
            proof = None
        server = Server(self._device, planned, outs)
        regular = False
        try:
            self._serve(server, self._step)
            regular = server.exact and self._well and self._as_planned(planned.plan, outs)
        finally:
            if not regular:
                graphs.abandon(part, "its memory was not as it had been")
        if regular and proof is not None:
            self._prove(planned, outs, key, proof)

    def _cut_around(self, planned: _Planned) -> None:
        """Arrays that a program collects (its losses) are elsewhere each time: what makes or reads them is for no
        graph, so that the rest may be one."""
        keys = list(planned.seen)[-WANDER:]
        refs: list[tuple[Ref, ...]] = [(ref,) for ref in self._here.inputs]
        for out in range(len(planned.plan.outs)):
            made = (effect for effect in planned.plan.effects if isinstance(effect, Make))
            refs.append(tuple(effect.ref for effect in made if effect.out == out))
        wandering = {ref for slot, found in zip(zip(*keys), refs) if len(set(slot)) > WANDER - 3 for ref in found}
        first = self._part.segment.first
        barred = {
            first + n: "its memory is elsewhere each time"
            for n, step in enumerate(self._part.segment.steps)
            if step.works and wandering.intersection((*step.reads, *step.changed, *step.made))
        }
        if barred:
            self._graphs.bar(self._part, barred)

    def _serve(self, server: Server, step: Any) -> None:
        with self._device.serving(server):
            for n in range(len(self._commands)):
                server.at(n)
                server.exact &= self._well
                step(n)
            self._executor.arguments.clear()
            server.at(len(self._commands))

    def _as_planned(self, plan: Plan, outs: list) -> bool:
        """Whether what has outlived is where it should be."""
        table, address, array = self._executor.table, self._device.address, self._device.array
        for effect in plan.effects:
            if isinstance(effect, Make):
                entry = table.peek(self._here.numbers[effect.ref])
                if entry is not None and (
                    type(entry) is not array or address(entry) != outs[effect.out].ptr + effect.offset
                ):
                    return False
        return True

    def _prove(self, planned: _Planned, outs: list, key: tuple, proof: Any) -> None:
        """Capture the commands, launch what came of it where they have just run, and compare."""
        graphs, place = self._graphs, [0]
        try:
            try:
                graph = self._device.capture(lambda: self._again(planned, outs, place))
            except Exception as error:
                where = self._part.segment.first + place[0]
                graphs.failed(error)
                graphs.bar(self._part, {where: f"not capturable: {type(error).__name__}: {error}"})
                return
            if graph is None:
                graphs.give_up(self._part, "its memory was not as it had been when it was captured")
            elif proof.holds(graph, planned.block, planned.plan.total):
                graphs.keep(planned, key, graph)
            else:
                log.warning("a graph had other results than its commands, and is not used")
                graphs.give_up(self._part, "its graph had other results")
        except Exception as error:  # no memory, or an error of the card that the next command will meet as well
            graphs.give_up(self._part, f"its graph could not be compared: {type(error).__name__}: {error}")
        finally:
            proof.end()

    def _again(self, planned: _Planned, outs: list, place: list[int]) -> bool:
        """The commands once more, on handles of their own. Whether their memory was as planned."""
        executor, table = self._executor, PureTable()
        numbers = self._here.numbers
        for handle, x in ({numbers[ref]: x for ref, x in self._here.inputs.items()} | self._here.kernels).items():
            table.put(handle, x)
        server = Server(self._device, planned, outs)

        def step(n: int) -> None:
            place[0] = n
            command = self._commands[n]
            executor.handlers[command[0]][1](*command[1:])
            executor.arguments.clear()

        with executor.apart(table):
            self._serve(server, step)
        return server.exact

    def tell(self, plan: Plan, outs: list) -> None:
        """What the table hears of a launch."""
        executor, numbers = self._executor, self._here.numbers
        put, make = executor.table.put, self._device.make
        for effect in plan.effects:
            if isinstance(effect, Make):
                shape, dtype, strides = effect.layout
                put(numbers[effect.ref], make(outs[effect.out], effect.offset, shape, dtype, strides), effect.nbytes)
            else:
                self._step(effect)


def _unused(ring: list) -> Any:
    for pointer in ring:
        if sys.getrefcount(pointer) == _ALONE:
            return pointer
    return None


def _references(ring: list) -> int:
    """Of what nobody else has, counted as ``_unused`` does."""
    for pointer in ring:
        return sys.getrefcount(pointer)
    return 0


_ALONE = _references([object()])


def _value(ref: Ref, base: int, given: list) -> Any:
    kind, x = ref
    return x if kind == CONSTANT else (base + x) % 2**64 if kind == MOVING else given[x]
