"""What a result will look like, before it exists.

Three tiers: rules of a few lines where the result's extents are computed (concatenate, fft, pad,
...); a dry run of NumPy itself on small stand-ins; and what was learned from earlier answers. The
answer is a tree of ``Meta``, None (unknown: the caller waits once and learns) or ``WAIT``
(data decides: never learned). Rules refuse (None) what is unusual, so that the worker says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgpu.client.meta import Meta as Meta
from rgpu.client.meta import fresh as fresh
from rgpu.client.predict import create, dry, fourier, join, select
from rgpu.client.predict.axes import normalize as normalize_axis  # noqa: F401
from rgpu.client.predict.axes import one as axis  # noqa: F401
from rgpu.client.predict.dry import WAIT as WAIT
from rgpu.client.predict.elementwise import elementwise as elementwise
from rgpu.client.predict.elementwise import inplace as inplace
from rgpu.client.predict.elementwise import numpy_function as numpy_function
from rgpu.client.predict.elementwise import scalar_key as scalar_key
from rgpu.wire.values import OLD_NUMPY

#: signature -> layouts by the rules; (who answered, signature) -> layouts of the answer
known: dict[Any, Any] = {}
learned: dict[Any, Any] = {}
_KEPT = 50_000  # of each: a program that makes endless signatures must not keep them

RULES: dict[str, Callable[..., Any]] = {**join.RULES, **select.RULES, **fourier.RULES, **create.RULES}


def remember(where: dict, key: Any, tree: Any) -> None:
    """For the next call with this signature (None: there is none)."""
    if key is not None:
        if len(where) >= _KEPT:
            where.clear()
        where[key] = tree


def _number(x: Any) -> bool:
    return type(x) is Meta and not x.ndim and x.dtype.kind in "biu"


def predict(name: str, kind: str, args: tuple, kwargs: dict) -> Any:
    """Tree of Meta for a call whose arrays are given as Meta; None or ``WAIT`` when only the worker knows."""
    if OLD_NUMPY:
        return None  # learned from the worker, whose NumPy promotes otherwise
    rule = RULES.get(name)
    try:
        if rule is not None:
            return rule(*args, **kwargs)
        if any(map(_number, args[1:])) or any(map(_number, kwargs.values())):
            return WAIT  # an axis, an offset or a flag that stands on the device
        if kind in ("reduce", "like"):
            return dry.relabelled(name, args, kwargs)
        if kind in ("unary", "binary", "ufunc", "pure", "scan"):
            return dry.small(name, args, kwargs)
    except (TypeError, AttributeError, ValueError, IndexError):
        return None  # the call is unusual or wrong: the worker says what it makes of it
    return None
