"""Products of distributed matrices, block by block: each on a device that has both blocks.

The blocks of the result are sums over devices, so its mode is SUM: nothing is exchanged until somebody needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu import cuda
from rgpu.cupyx.distributed.array import _modes
from rgpu.cupyx.distributed.array._array import DistributedArray
from rgpu.cupyx.distributed.array._chunk import _Chunk
from rgpu.cupyx.distributed.array._index_arith import _index_for_subindex, _index_intersection


def make_2d_index_map(
    i_partitions: list[int], j_partitions: list[int], devices: list[list[set[int]]]
) -> dict[int, list[tuple[slice, ...]]]:
    """Blocks of a matrix: rows and columns are cut at the partitions (from 0 to the extent), and the block in row i
    and column j goes to every device of ``devices[i][j]``."""
    for partitions in (i_partitions, j_partitions):
        if list(partitions) != sorted(set(partitions)) or partitions[0] != 0:
            raise RuntimeError(f"partitions begin at 0 and grow, unlike {partitions}")
    if len(devices) != len(i_partitions) - 1 or any(len(row) != len(j_partitions) - 1 for row in devices):
        raise RuntimeError("there must be a set of devices for each block")
    found: dict[int, list[tuple[slice, ...]]] = {}
    for i, row in enumerate(devices):
        for j, owners in enumerate(row):
            block = slice(i_partitions[i], i_partitions[i + 1]), slice(j_partitions[j], j_partitions[j + 1])
            for device in owners:
                found.setdefault(device, []).append(block)
    return found


def _whole(part: slice) -> tuple[int, int]:
    if part.step != 1:
        raise RuntimeError("Inconsistent index mapping: a product wants blocks without steps")
    return part.start, part.stop


def _check_blocks(a: DistributedArray, b: DistributedArray, k_a: int, k_b: int, batch: tuple) -> None:
    """Along the axis that is summed over, what belongs to the same leading indices is cut at the same places."""
    for left in a._chunks():
        lead_a, one = _operands(left, k_a, batch)
        for right in b._chunks():
            lead_b, other = _operands(right, k_b, batch)
            overlap = max(one[0], other[0]) < min(one[1], other[1])
            if one != other and overlap and _index_intersection(lead_a, lead_b, batch) is not None:
                raise RuntimeError(f"Inconsistent index mapping: the blocks {one} and {other} overlap but differ")


def _operands(chunk: _Chunk, axis: int, batch: tuple) -> tuple[tuple, tuple[int, int]]:
    """(the part of the result's leading axes that a chunk belongs to, its cut of the axis summed over)."""
    lead = chunk.index[: max(0, len(chunk.index) - 2)]
    whole = tuple(slice(0, n, 1) for n in batch[: len(batch) - len(lead)])
    return (*whole, *lead), _whole(chunk.index[axis])


def _products(a: DistributedArray, b: DistributedArray, lefts: list, rights: list, batch: tuple) -> Any:
    """Of these chunks those pairs that belong together: (the block's index in the result and its cut of the axis
    summed over, the two arrays)."""
    k_a, k_b = a.ndim - 1, max(0, b.ndim - 2)
    for left in lefts:
        lead_a, cut = _operands(left, k_a, batch)
        for right in rights:
            lead_b, other = _operands(right, k_b, batch)
            lead = _index_intersection(lead_a, lead_b, batch)
            if cut != other or lead is None:
                continue
            index = (*lead, *left.index[-2:-1], *(right.index[-1:] if b.ndim > 1 else ()))
            yield (index, cut), (left, lead_a, lead), (right, lead_b, lead)


def _part(chunk: _Chunk, has: tuple, lead: tuple, batch: tuple) -> Any:
    """A chunk's array for these leading indices."""
    own = chunk.array.ndim - 2
    if own <= 0:
        return chunk.array
    return chunk.array[_index_for_subindex(has, lead, batch)[len(batch) - own :]]


def matmul(a: DistributedArray, b: DistributedArray, out: Any = None, **kwargs: Any) -> DistributedArray:
    """The matrix product of two distributed arrays with NumPy's meaning for one and for more than two dimensions.

    RuntimeError where the blocks do not fit, or where no device has both blocks of a product.
    """
    if out is not None or kwargs:
        raise RuntimeError("matmul of distributed arrays takes no keywords")
    if not isinstance(a, DistributedArray) or not isinstance(b, DistributedArray):
        raise RuntimeError("Mixing a distributed array with a non-distributed one is not supported")
    k_a, k_b = a.ndim - 1, max(0, b.ndim - 2)
    if a.shape[k_a] != b.shape[k_b]:
        raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
    a, b = a._to_replica(), b._to_replica()
    batch = np.broadcast_shapes(a.shape[: max(0, a.ndim - 2)], b.shape[: max(0, b.ndim - 2)])
    _check_blocks(a, b, k_a, k_b, batch)
    made: dict[int, list[_Chunk]] = {}
    done: list[tuple] = []
    for device in sorted(set(a.devices) & set(b.devices)):
        with cuda.Device(device):
            pairs = _products(a, b, a._chunks_map[device], b._chunks_map[device], batch)
            for block, (left, has_a, lead), (right, has_b, _) in pairs:
                if block not in done:
                    done.append(block)
                    product = _part(left, has_a, lead, batch) @ _part(right, has_b, lead, batch)
                    made.setdefault(device, []).append(_Chunk(product, None, block[0]))
    for block, _, _ in _products(a, b, a._chunks(), b._chunks(), batch):
        if block not in done:
            raise RuntimeError(f"There is no device that can perform multiplication for the block {block}")
    shape = (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
    dtype = next((chunk.array.dtype for chunks in made.values() for chunk in chunks), a.dtype)
    return DistributedArray(shape, dtype, made, _modes.SUM)
