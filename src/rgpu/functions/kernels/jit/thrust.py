"""``cupyx.jit.thrust``: Thrust's algorithms for kernels; each thread runs them on ranges of its own.

Marks only, as everything that means something inside a kernel: the include of an algorithm, and which of its
arguments its result has the type of. Knows nothing of syntax trees.
"""

from __future__ import annotations

from rgpu.functions.kernels.jit.builtins import Builtin

VOID, BOOL, INT, VALUE, LAST = "void", "bool", "int", "value", "last"
_SETS = {"difference": 2, "intersection": 1, "symmetric_difference": 2, "union": 2}  # how many have values

# name: the header, the least and most arguments after the policy, and the result: an argument's place, a pair
# of places, or a word
_ALGORITHMS: dict[str, tuple[str, int, int, object]] = {
    "adjacent_difference": ("adjacent_difference", 3, 3, 2), "binary_search": ("binary_search", 3, 5, BOOL),
    "copy": ("copy", 3, 3, 2), "count": ("count", 3, 3, INT), "equal": ("equal", 3, 3, BOOL),
    "equal_range": ("binary_search", 3, 3, (0, 0)), "exclusive_scan": ("scan", 3, 4, 2),
    "exclusive_scan_by_key": ("scan", 4, 5, 3), "fill": ("fill", 3, 3, VOID), "find": ("find", 3, 3, 0),
    "gather": ("gather", 4, 4, 3), "inclusive_scan": ("scan", 3, 3, 2), "inclusive_scan_by_key": ("scan", 4, 4, 3),
    "inner_product": ("inner_product", 4, 4, 3), "is_sorted": ("sort", 2, 2, BOOL),
    "is_sorted_until": ("sort", 2, 2, 0), "lower_bound": ("binary_search", 3, 5, 0),
    "mismatch": ("mismatch", 3, 3, (0, 2)),
    "reduce": ("reduce", 2, 3, VALUE), "reduce_by_key": ("reduce", 5, 5, (3, 4)),
    "remove": ("remove", 3, 3, 0), "remove_copy": ("remove", 4, 4, 2), "replace": ("replace", 4, 4, VOID),
    "replace_copy": ("replace", 5, 5, 2), "reverse": ("reverse", 2, 2, VOID), "reverse_copy": ("reverse", 3, 3, 2),
    "scatter": ("scatter", 4, 4, VOID), "sequence": ("sequence", 2, 4, VOID), "sort": ("sort", 2, 2, VOID),
    "sort_by_key": ("sort", 3, 3, VOID), "stable_sort": ("sort", 2, 2, VOID),
    "stable_sort_by_key": ("sort", 3, 3, VOID),
    "swap_ranges": ("swap", 3, 3, 2), "unique": ("unique", 2, 2, 0), "unique_by_key": ("unique", 3, 3, (0, 2)),
    "upper_bound": ("binary_search", 3, 5, 0),
    **{f"set_{name}": ("set_operations", 5, 5, 4) for name in _SETS},
    **{f"set_{name}_by_key": ("set_operations", 6 + n, 6 + n, (4 + n, 5 + n)) for name, n in _SETS.items()},
}  # fmt: skip


class Algorithm(Builtin):
    """One function of Thrust."""

    def __init__(self, name: str, header: str, least: int, most: int, result: object) -> None:
        super().__init__("thrust", f"thrust.{name}", f"thrust::{name}")
        self.header, self.least, self.most, self.result = f"thrust/{header}.h", least, most, result


class Policy(Builtin):
    """``thrust.device`` and its kin: the first argument of every algorithm."""


class IteratorMaker(Builtin):
    """``make_constant_iterator`` and ``make_counting_iterator``."""


host, device, seq = (Policy("policy", f"thrust.{name}", f"thrust::{name}") for name in ("host", "device", "seq"))
make_constant_iterator, make_counting_iterator = (
    IteratorMaker("iterator", f"thrust.make_{name}_iterator", f"thrust::{name}_iterator")
    for name in ("constant", "counting")
)
globals().update({name: Algorithm(name, *rule) for name, rule in _ALGORITHMS.items()})

__all__ = [*_ALGORITHMS, "device", "host", "make_constant_iterator", "make_counting_iterator", "seq"]  # noqa: PLE0604
