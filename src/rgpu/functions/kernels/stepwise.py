"""A fused function before its kernels are made: what it noted, run as ordinary commands.

So the function itself runs once, as in CuPy, also while few elements do not pay for a compiler. Results are those of
the kernels: arrays of their own, and what was stored into arguments. Knows the graph, not tracing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.client.remote import Remote
from rgpu.functions import creation, dispatch, views
from rgpu.functions.kernels.trace import Node
from rgpu.functions.ufunc import UFUNCS

_TYPED = ("sum", "prod")  # reductions that take the dtype of their result


def run(outputs: list[Node], stores: dict[int, Node], args: tuple) -> list[Any]:
    """The arrays of ``outputs``; ``stores`` go into arguments when everything is computed."""
    found: dict[Node, Any] = {}

    def value(node: Node) -> Any:
        if node not in found:
            found[node] = _made(node, [value(x) for x in node.inputs], args)
        return found[node]

    results = [value(node) for node in outputs]
    stored = [(args[i], value(node)) for i, node in stores.items()]
    results = [x.copy() if node.kind in ("array", "view") else x for node, x in zip(outputs, results)]
    for target, x in stored:
        dispatch.run_internal("ndarray.astype", target, x)
    return results


def _made(node: Node, inputs: list, args: tuple) -> Any:
    if node.kind in ("array", "scalar"):
        return args[node.detail]
    if node.kind == "constant":
        return node.detail
    if node.kind == "view":
        return inputs[0][node.detail]
    name, how = node.detail
    if node.kind == "reduce":
        options = {"dtype": node.dtype} if name in _TYPED else {}
        return dispatch.call(name, inputs[0], axis=how, **options)
    if name == "copy":
        return _as(node, inputs[0])
    if name == "where":
        return _as(node, dispatch.call("where", *inputs))
    if not any(isinstance(x, Remote) for x in inputs):  # numbers
        number = getattr(np, name)(*inputs)
        return number.item() if node.weak is not None else node.dtype.type(number)
    result = UFUNCS[name](*inputs)
    return result if result.dtype == node.dtype else UFUNCS[name](*inputs, dtype=node.dtype)


def _as(node: Node, x: Any) -> Any:
    """A new array of a node's dtype and shape, with this content."""
    if not isinstance(x, Remote):
        return creation.full(node.shape, x, node.dtype)
    if x._metadata.shape == node.shape:
        return x.astype(node.dtype)
    return views.broadcast_to(x, node.shape).astype(node.dtype)
