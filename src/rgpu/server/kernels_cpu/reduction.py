"""Reduction kernels: fold a mapped expression over some axes, with several accumulators so that it vectorizes.

Three ways through the data, chosen at each launch: output by output; one output in parts, for all cores; and
many neighbouring outputs at once where they, not the reduced axis, lie next to each other in memory.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from rgpu.server.kernels_cpu import build
from rgpu.server.kernels_cpu.loops import (
    _LONG,
    _POINTER,
    GRAIN,
    Numbers,
    Operand,
    compiler_options,
    element,
    join_axes,
    movement,
    namespaced,
    typedefs,
)
from rgpu.wire.kernels import c_type, parse

LANES, TILE = 16, 64


class Reduction:
    """CuPy's ReductionKernel on this device."""

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str, identity: str,
        name: str, reduce_type: str | None, preamble: str, options: Any,
    ) -> None:  # fmt: skip
        build.check_allowed()
        self.inputs, self.outputs = parse(in_params, True), parse(out_params, False)
        self.expressions = (map_expr, reduce_expr, post_map_expr, identity)
        self.name, self.preamble, self.options = name, preamble, compiler_options(options)
        first = self.outputs[0]
        self.reduce_type = reduce_type or (first.type if first.dtype is None else c_type(first.dtype))
        self._compiled: dict[Any, Any] = {}

    def launch(self, inputs: list, outputs: list, axes: tuple, keepdims: bool) -> None:
        """Reduce the broadcast shape of what is not raw over ``axes``."""
        ins = [Operand(p, x) for p, x in zip(self.inputs, inputs)]
        outs = [Operand(p, x) for p, x in zip(self.outputs, outputs)]
        walked = [o for o in ins if o.walked]
        shape = np.broadcast_shapes(*[o.value.shape for o in walked])
        kept = tuple(d for d in range(len(shape)) if d not in axes)
        views = [np.broadcast_to(o.value, shape) for o in walked]
        written = [o for o in outs if o.walked]
        results = [o.value.squeeze(axes) if keepdims else o.value for o in written]
        pick = lambda values, order: tuple(values[d] for d in order)  # noqa: E731
        # The order of a reduction is free: the axis with the smallest steps innermost.
        axes = tuple(sorted(axes, key=lambda d: -abs(views[0].strides[d])))
        inner_shape, inner = join_axes(pick(shape, axes), [pick(v.strides, axes) for v in views])
        all_outer = [pick(v.strides, kept) for v in views] + [r.strides for r in results]
        outer_shape, outer = join_axes(pick(shape, kept), all_outer)
        if not math.prod(outer_shape):
            return
        numbers, total = Numbers(), math.prod(inner_shape)
        numbers.add((*inner_shape, *outer_shape))
        for k, o in enumerate((*walked, *written)):
            numbers.add((o.value.ctypes.data, *(inner[k] if k < len(walked) else ()), *outer[k]))
        index = [numbers.add((*pick(shape, axes), *pick(shape, kept))), numbers.add(pick(shape, kept))]
        declared = [o.declare(numbers) for o in (*ins, *outs) if not o.walked]
        moves = [
            (movement(inner[k][-1], o.value.itemsize), movement(outer[k][-1], o.value.itemsize))
            for k, o in enumerate(walked)
        ]
        key = (
            len(inner_shape), len(outer_shape), tuple(moves), tuple(index), tuple(d[1] for d in declared),
            len(axes), len(kept), tuple((o.array, o.value.dtype) for o in (*ins, *outs)),
        )  # fmt: skip
        functions = self._compiled.get(key)
        if functions is None:
            sizes = (len(inner_shape), len(outer_shape), index, len(axes), len(kept))
            text = self._source(ins, outs, moves, sizes, [d[0] for d in declared])
            functions = self._compiled[key] = _functions(
                build.load(text, self.options, shown="\n".join(self.expressions), name=self.name)
            )
        beside = abs(outer[0][-1]) < abs(inner[0][-1]) and outer_shape[-1] >= 8
        _run(functions, numbers, math.prod(outer_shape), total, beside)

    def _source(self, ins: list, outs: list, moves: list, sizes: tuple, declared: list) -> str:
        n_inner, n_outer, index, n_axes, n_kept = sizes
        map_expr, reduce_expr, post_map_expr, identity = self.expressions
        walked, written = [o for o in ins if o.walked], [o for o in outs if o.walked]
        fold, along, tile, places, base = [], [], [], [], []
        for k, (o, (inner, outer)) in enumerate(zip(walked, moves)):
            name = o.parameter.name
            place = n_inner + n_outer + k * (1 + n_inner + n_outer)
            base.append(
                f"(char*)rgpu_m[{place}] + rgpu_o.offset((const ptrdiff_t*)rgpu_m + {place + 1 + n_inner})"
            )
            places.append(
                f"char* rgpu_p_{name} = rgpu_base[{k}] + rgpu_w.offset((const ptrdiff_t*)rgpu_m + {place + 1});"
            )
            fold.append(
                f"const ptrdiff_t rgpu_d_{name} = rgpu_m[{place + n_inner}];"
                + element(o, inner, "rgpu_x", True)
            )
            tile.append(
                f"const ptrdiff_t rgpu_d_{name} = rgpu_m[{place + n_inner + n_outer}];"
                + element(o, outer, "rgpu_t", True)
            )
            along.append(o)
        finish, first = [], n_inner + n_outer + len(walked) * (1 + n_inner + n_outer)
        for k, o in enumerate(written):
            place = first + k * (1 + n_outer)
            finish.append(
                f"{o.type} &{o.parameter.name} = *({o.type}*)((char*)rgpu_m[{place}] + rgpu_o.offset((const ptrdiff_t*)rgpu_m + {place + 1}));"
            )
        uses = "\n".join((*self.expressions, self.preamble))
        parts = {
            "IND": f"CIndexer<{n_axes + n_kept}> _in_ind((const ptrdiff_t*)rgpu_m + {index[0]}); "
            f"CIndexer<{n_kept}> _out_ind((const ptrdiff_t*)rgpu_m + {index[1]});",
            "SET": "_in_ind.set(_j);" if "_in_ind" in uses else "",
            "DECLARED": " ".join(declared), "PLACES": " ".join(places), "FOLD": " ".join(fold), "TILED": " ".join(tile),
            "BASE": ", ".join(base), "FINISH": " ".join(finish), "INNER": str(n_inner), "OUTER": str(n_outer),
            "WALKED": str(max(len(walked), 1)), "IDENTITY": identity, "MAP": map_expr, "LANES": str(LANES), "TILE": str(TILE),
        }  # fmt: skip
        text = _TEMPLATE
        for name, value in parts.items():
            text = text.replace(f"@{name}@", value)
        macros = f"#define REDUCE(a, b) ({reduce_expr})\n#define POST_MAP(a) ({post_map_expr})\ntypedef {self.reduce_type} _type_reduce;"
        types = typedefs([*ins, *outs], (("IndexT", "long long"),))
        return namespaced(types, self.preamble, macros, text) + _ENTRIES


def _functions(library: ctypes.CDLL) -> tuple[Any, ...]:
    functions = (library.rgpu_run, library.rgpu_tiles, library.rgpu_part, library.rgpu_join)
    for function in functions:
        function.restype = None
    return (*functions, _LONG.in_dll(library, "rgpu_partial_bytes").value)


def _run(functions: tuple, numbers: Numbers, outputs: int, total: int, beside: bool) -> None:
    run, tiles, part, join, partial_bytes = functions
    table, scalars = numbers.arguments()
    pointer = table.ctypes.data_as(_POINTER)
    if beside:
        build.spread(
            lambda a, b: tiles(pointer, scalars, _LONG(a), _LONG(b)),
            outputs,
            max(TILE, GRAIN // max(total, 1)),
        )
    elif outputs > 1 or total < 2 * GRAIN:
        build.spread(lambda a, b: run(pointer, scalars, _LONG(a), _LONG(b)), outputs, GRAIN // max(total, 1))
    else:
        count = build.threads()
        partial = ctypes.create_string_buffer(partial_bytes * count)
        at = ctypes.addressof(partial)

        def parts(first: int, last: int) -> None:
            for k in range(first, last):
                here = ctypes.c_void_p(at + k * partial_bytes)
                part(pointer, scalars, _LONG(total * k // count), _LONG(total * (k + 1) // count), here)

        build.spread(parts, count, 1)
        join(pointer, scalars, ctypes.c_void_p(at), _LONG(count))


#: one accumulator a lane; ``_i`` counts outputs, ``_J`` reduced elements, ``_j`` both, as in CuPy's own kernels
_TEMPLATE = """
static inline _type_reduce rgpu_fold(const int64_t* rgpu_m, const char* rgpu_s, char* const* rgpu_base, ptrdiff_t _i, ptrdiff_t rgpu_first, ptrdiff_t rgpu_last) {
    @IND@
    @DECLARED@
    const ptrdiff_t rgpu_outputs = _out_ind.size();
    _type_reduce rgpu_a[@LANES@];
    bool rgpu_wide = false;
    for (int l = 0; l < @LANES@; ++l) rgpu_a[l] = _type_reduce(@IDENTITY@);
    rgpu::Walk<@INNER@> rgpu_w((const ptrdiff_t*)rgpu_m, rgpu_first);
    while (rgpu_first < rgpu_last) {
        ptrdiff_t rgpu_n = rgpu_w.left(), rgpu_k = 0;
        if (rgpu_n > rgpu_last - rgpu_first) rgpu_n = rgpu_last - rgpu_first;
        @PLACES@
        for (; rgpu_k + @LANES@ <= rgpu_n; rgpu_k += @LANES@) {
            rgpu_wide = true;
            for (int rgpu_l = 0; rgpu_l < @LANES@; ++rgpu_l) {
                const ptrdiff_t rgpu_x = rgpu_k + rgpu_l, _J = rgpu_first + rgpu_x, _j = _i + _J * rgpu_outputs;
                @SET@
                @FOLD@
                _type_reduce rgpu_v = static_cast<_type_reduce>(@MAP@);
                rgpu_a[rgpu_l] = REDUCE(rgpu_a[rgpu_l], rgpu_v);
            }
        }
        for (; rgpu_k < rgpu_n; ++rgpu_k) {
            const ptrdiff_t rgpu_x = rgpu_k, _J = rgpu_first + rgpu_x, _j = _i + _J * rgpu_outputs;
            @SET@
            @FOLD@
            _type_reduce rgpu_v = static_cast<_type_reduce>(@MAP@);
            rgpu_a[0] = REDUCE(rgpu_a[0], rgpu_v);
        }
        rgpu_first += rgpu_n;
        rgpu_w.row();
    }
    if (rgpu_wide)
        for (int l = 1; l < @LANES@; ++l) rgpu_a[0] = REDUCE(rgpu_a[0], rgpu_a[l]);
    return rgpu_a[0];
}
static inline void rgpu_finish(const int64_t* rgpu_m, const char* rgpu_s, const rgpu::Walk<@OUTER@>& rgpu_o, ptrdiff_t _i, _type_reduce _s) {
    @IND@
    @DECLARED@
    _out_ind.set(_i);
    @FINISH@
    POST_MAP(_s);
}
static inline void rgpu_each(const int64_t* rgpu_m, const char* rgpu_s, ptrdiff_t first, ptrdiff_t last) {
    const ptrdiff_t* shape = (const ptrdiff_t*)rgpu_m;
    ptrdiff_t total = 1;
    for (int d = 0; d < @INNER@; ++d) total *= shape[d];
    for (ptrdiff_t i = first; i < last; ++i) {
        rgpu::Walk<@OUTER@> rgpu_o(shape + @INNER@, i);
        char* base[@WALKED@] = {@BASE@};
        rgpu_finish(rgpu_m, rgpu_s, rgpu_o, i, rgpu_fold(rgpu_m, rgpu_s, base, i, 0, total));
    }
}
static inline void rgpu_tile(const int64_t* rgpu_m, const char* rgpu_s, ptrdiff_t first, ptrdiff_t last) {
    @IND@
    @DECLARED@
    const ptrdiff_t *shape = (const ptrdiff_t*)rgpu_m, rgpu_outputs = _out_ind.size();
    ptrdiff_t total = 1;
    for (int d = 0; d < @INNER@; ++d) total *= shape[d];
    while (first < last) {
        rgpu::Walk<@OUTER@> rgpu_o(shape + @INNER@, first);
        ptrdiff_t rgpu_n = rgpu_o.left();
        if (rgpu_n > last - first) rgpu_n = last - first;
        if (rgpu_n > @TILE@) rgpu_n = @TILE@;
        char* rgpu_base[@WALKED@] = {@BASE@};
        _type_reduce rgpu_a[@TILE@];
        for (int t = 0; t < rgpu_n; ++t) rgpu_a[t] = _type_reduce(@IDENTITY@);
        rgpu::Walk<@INNER@> rgpu_w(shape, 0);
        for (ptrdiff_t _J = 0; _J < total; ++_J) {
            @PLACES@
            for (ptrdiff_t rgpu_t = 0; rgpu_t < rgpu_n; ++rgpu_t) {
                const ptrdiff_t _i = first + rgpu_t, _j = _i + _J * rgpu_outputs;
                @SET@
                @TILED@
                _type_reduce rgpu_v = static_cast<_type_reduce>(@MAP@);
                rgpu_a[rgpu_t] = REDUCE(rgpu_a[rgpu_t], rgpu_v);
            }
            if (++rgpu_w.index[@INNER@ - 1] == shape[@INNER@ - 1]) rgpu_w.row();
        }
        for (ptrdiff_t t = 0; t < rgpu_n; ++t) {
            rgpu_finish(rgpu_m, rgpu_s, rgpu_o, first + t, rgpu_a[t]);
            ++rgpu_o.index[@OUTER@ - 1];
        }
        first += rgpu_n;
    }
}
static inline _type_reduce rgpu_piece(const int64_t* rgpu_m, const char* rgpu_s, ptrdiff_t first, ptrdiff_t last) {
    rgpu::Walk<@OUTER@> rgpu_o((const ptrdiff_t*)rgpu_m + @INNER@, 0);
    char* base[@WALKED@] = {@BASE@};
    return rgpu_fold(rgpu_m, rgpu_s, base, 0, first, last);
}
static inline void rgpu_together(const int64_t* rgpu_m, const char* rgpu_s, const _type_reduce* parts, ptrdiff_t count) {
    _type_reduce s = parts[0];
    for (ptrdiff_t k = 1; k < count; ++k) { _type_reduce rgpu_v = parts[k]; s = REDUCE(s, rgpu_v); }
    rgpu_finish(rgpu_m, rgpu_s, rgpu::Walk<@OUTER@>((const ptrdiff_t*)rgpu_m + @INNER@, 0), 0, s);
}
"""

_ENTRIES = """
#undef REDUCE
#undef POST_MAP
#define RGPU_ENTRY extern "C" __attribute__((visibility("default")))
RGPU_ENTRY long long rgpu_partial_bytes = sizeof(rgpu_user::_type_reduce);
RGPU_ENTRY void rgpu_run(const int64_t* m, const char* s, long long a, long long b) { rgpu_user::rgpu_each(m, s, a, b); }
RGPU_ENTRY void rgpu_tiles(const int64_t* m, const char* s, long long a, long long b) { rgpu_user::rgpu_tile(m, s, a, b); }
RGPU_ENTRY void rgpu_part(const int64_t* m, const char* s, long long a, long long b, void* out) {
    *(rgpu_user::_type_reduce*)out = rgpu_user::rgpu_piece(m, s, a, b);
}
RGPU_ENTRY void rgpu_join(const int64_t* m, const char* s, void* parts, long long count) {
    rgpu_user::rgpu_together(m, s, (const rgpu_user::_type_reduce*)parts, count);
}
"""
