"""``rgpu.checkpoint`` and ``rgpu.restore``: a program's arrays and random state in a file, and back.

Names of the program become names of the session's handles here, and the other way round; the file is
``client.checkpoint``'s.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np

from rgpu.client import checkpoint as files
from rgpu.client import pool, state
from rgpu.client.meta import intern
from rgpu.client.queue import next_handle
from rgpu.client.remote import Remote
from rgpu.errors import CheckpointError, ProtocolError
from rgpu.functions import dispatch
from rgpu.functions.objects import RemoteObject


def checkpoint(file: Any, **named: Any) -> None:
    """Save arrays and random states of all devices in use, as they are at one point of the program.

    ``named`` arrays, RandomStates and Generators come back under their names (``rgpu.checkpoint(f, w=w, rng=rng)``);
    views keep sharing memory. Without names all arrays are saved, and come back under the numbers of their handles.
    Objects of SciPy's classes and captured graphs are not kept: named ones are a TypeError, others a warning. Streams,
    events, kernels and modules are for the program to make again; an array over a module's global or constant is saved,
    and comes back with memory of its own. CheckpointError for a named array that cannot be saved.
    The random state that ``cupy.random`` uses on each device is always saved. Waits for the devices, and raises what
    an earlier command failed with. A file of that name is replaced once the new one is whole.
    """
    from rgpu.random import _generator

    wanted = {name: _named(name, thing) for name, thing in named.items()}
    devices = [device for device in pool.get().devices if device.attached]
    states = [(d, _generator._random_states.get(d.ordinal)) for d in devices]
    defaults = {str(d.ordinal): [s._remote_handle, int(s.method)] for d, s in states if s and s._stream is d.stream}
    with contextlib.ExitStack() as held:
        for device in devices:
            held.enter_context(device.stream.lock)
        for device in devices:
            device.stream.sync()
        sessions, missing = [], set()
        for device in devices:
            line = state.Line(device.stream)
            entries = state.describe(line)
            missing |= set(filter(None, [state.left(entries)]))
            keep = None
            if named:
                keep = {handle for _, ordinal, handle, *_ in wanted.values() if ordinal == device.ordinal}
                keep.add(defaults.get(str(device.ordinal), [0])[0])
            sessions.append((device.ordinal, line, _chosen(entries, keep, wanted, device.ordinal)))
        files.save(file, sessions, {"names": wanted, "defaults": defaults})
    if missing and not named:
        warnings.warn(
            f"the checkpoint has no {', '.join(sorted(missing))}: make them again after restoring", stacklevel=2
        )


def _named(name: str, thing: Any) -> list:
    """[kind, ordinal, handle, more] of something that can be saved under a name."""
    from rgpu.random import BitGenerator, Generator, RandomState

    if isinstance(thing, Remote):
        return ["array", thing._stream.device.ordinal, thing._handle]
    if isinstance(thing, RandomState):
        return ["state", thing._stream.device.ordinal, thing._remote_handle, int(thing.method)]
    kind, bits = ("generator", thing.bit_generator) if isinstance(thing, Generator) else ("bits", thing)
    if isinstance(bits, BitGenerator):
        return [kind, bits._stream.device.ordinal, bits._remote_handle, type(bits).__name__]
    raise TypeError(
        f"{name} is a {type(thing).__name__}: arrays, RandomStates and Generators can be saved; save the arrays that "
        "it was made of, and make it again after restoring"
    )


def _chosen(entries: list[tuple], keep: set[int] | None, wanted: dict, ordinal: int) -> list[tuple]:
    """The arrays and random states among the entries; with ``keep`` only these, and what they are views of."""
    known, kinds = {e[1]: e for e in files.savable(entries)}, {e[1]: e[0] for e in entries}
    for name, (_, device, handle, *_) in wanted.items():
        if device == ordinal and handle not in known:
            failed = kinds.get(handle) == "poison"
            why = "what makes it has failed" if failed else "its device does not let its state be read"
            raise CheckpointError(f"{name} cannot be saved: {why}")
    if keep is None:
        return [entry for entry in known.values() if entry[2] != "random.Generator"]
    keep |= {known[handle][2] for handle in keep & known.keys() if known[handle][0] == "view"}
    return [entry for entry in known.values() if entry[1] in keep]


def restore(file: Any) -> dict:
    """What a checkpoint holds, on the devices of the same ordinals: names (or numbers) -> arrays, RandomStates,
    Generators. ``cupy.random`` continues where it was. Works in any program, at any time.

    Raises CheckpointError for a file that is damaged or is no checkpoint; nothing has changed then but that memory
    was used for a while.
    """
    with files.Reader(file) as reader:
        found: dict[int, dict[int, Any]] = {}
        try:
            for ordinal, entries in reader.devices:
                found[ordinal] = _rebuilt(pool.get().device(ordinal), entries, reader.contents(ordinal))
            names = reader.facts["names"]
            arrays = {
                handle: thing
                for things in found.values()
                for handle, thing in things.items()
                if isinstance(thing, Remote)
            }
            result: dict = {} if names else arrays
            for name, (kind, ordinal, handle, *more) in names.items():
                result[name] = found[ordinal][handle] = _returned(found[ordinal][handle], kind, *more)
            _set_defaults(found, reader.facts["defaults"])
            return result
        except (KeyError, TypeError, IndexError, AttributeError, ProtocolError) as error:
            raise reader.refused(f"{type(error).__name__}: {error}") from None


def _rebuilt(device: Any, entries: list[tuple], contents: Any) -> dict[int, Any]:
    """The arrays and random states of one device under fresh handles: handle in the file -> object."""
    from rgpu._ndarray import ndarray

    fresh: dict[int, int] = {}
    for kind, handle, *rest in entries:
        if kind not in ("array", "view") and not (kind == "made" and rest[0] in _RANDOM):
            raise ProtocolError(f"a {kind} where only arrays and random states may be")
        fresh[handle] = next_handle()
    stream = device.stream
    with stream.lock:
        for command in state.building(entries, fresh.__getitem__):
            stream.submit(command)
        stream.flush()
    made: dict[int, Any] = {}
    for kind, handle, *rest in entries:
        if kind == "made":
            made[handle] = holder = _Holder()
            holder._stream, holder._remote_handle = stream, fresh[handle]
            continue
        dtype, shape, strides = rest[-4:-1] if kind == "array" else rest[1:4]
        meta = intern(shape, dtype, _c_strides(shape, dtype) if strides is None else strides)
        made[handle] = array = dispatch.new(meta, stream, fresh[handle], ndarray)
        if kind == "view":
            array._root, array._offset = made[rest[0]], rest[-1]
    line = state.Line(stream)
    for handle, data in contents:
        line.store(fresh[handle], data)
    return made


_RANDOM = ("random.RandomState", "random.XORWOW", "random.MRG32k3a", "random.Philox4x3210")


class _Holder(RemoteObject):
    """Holds a random state until it is what it was."""


def _returned(thing: Any, kind: str, *more: Any) -> Any:
    """An object of the class it had."""
    from rgpu import random
    from rgpu.random import _bit_generator

    if not isinstance(thing, _Holder):
        return thing
    stream, handle = thing._stream, thing._remote_handle
    del thing._remote_handle
    if kind == "state":
        return _dressed(random.RandomState, stream, handle, method=more[0])
    classes = {cls.__name__: cls for cls in (random.XORWOW, random.MRG32k3a, random.Philox4x3210)}
    bits = _dressed(classes[more[0]], stream, handle, **_bit_generator.attributes(stream.device.ordinal))
    return random.Generator(bits) if kind == "generator" else bits


def _dressed(cls: type, stream: Any, handle: int, **attributes: Any) -> Any:
    made = cls.__new__(cls)
    made.__dict__.update(_stream=stream, _remote_handle=handle, **attributes)
    return made


def _set_defaults(found: dict, defaults: dict) -> None:
    from rgpu.random import _generator

    for ordinal, (handle, method) in defaults.items():
        if handle in found.get(int(ordinal), ()):
            _generator._random_states[int(ordinal)] = _returned(found[int(ordinal)][handle], "state", method)


def _c_strides(shape: tuple, dtype: np.dtype) -> tuple:
    from rgpu.client.meta import c_strides

    return c_strides(shape, dtype.itemsize)
