"""The C++ of element-wise functions, by their NumPy names: for jit kernels, ``vectorize`` and ``fuse``.

Results are NumPy's: NaN spreads through minimum and maximum, integers divided by zero give 0, shifts past the
width give 0 or -1. What has no formula is refused with NotImplementedError, a type that a formula does not
take with TypeError.
"""

from __future__ import annotations

import numpy as np

#: device functions that formulas call; once in every unit that has formulas
PREAMBLE = """
template <typename T> __device__ inline T rgpu_floor_divide(T a, T b) {
    if (b == 0) return 0;
    T q = a / b;
    return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
template <typename T> __device__ inline T rgpu_remainder(T a, T b) {
    if (b == 0) return 0;
    T r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <typename T> __device__ inline T rgpu_fmod(T a, T b) { return b == 0 ? 0 : a % b; }
template <typename T> __device__ inline T rgpu_power(T a, T b) {
    T result = 1;
    if (b < 0) return a == 1 ? 1 : (a + 1 == 0) ? (b % 2 ? a : 1) : 0;
    for (; b; b /= 2, a *= a) if (b % 2) result *= a;
    return result;
}
template <typename T> __device__ inline T rgpu_left_shift(T a, T b) {
    return (unsigned long long)b < 8 * sizeof(T) ? a << b : 0;
}
template <typename T> __device__ inline T rgpu_right_shift(T a, T b) {
    return (unsigned long long)b < 8 * sizeof(T) ? a >> b : a < 0 ? -1 : 0;
}
template <typename T> __device__ inline T rgpu_real_remainder(T a, T b) {
    T r = fmod(a, b);
    if (r == 0) return copysign(r, b);
    return (b < 0) != (r < 0) ? r + b : r;
}
template <typename T> __device__ inline T rgpu_real_floor_divide(T a, T b) {
    if (b == 0) return a / b;
    T r = fmod(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return copysign(T(0), a / b);
    T whole = floor(q);
    return q - whole > T(0.5) ? whole + 1 : whole;
}
__device__ inline float rgpu_floor_divide(float a, float b) { return rgpu_real_floor_divide(a, b); }
__device__ inline double rgpu_floor_divide(double a, double b) { return rgpu_real_floor_divide(a, b); }
__device__ inline float rgpu_remainder(float a, float b) { return rgpu_real_remainder(a, b); }
__device__ inline double rgpu_remainder(double a, double b) { return rgpu_real_remainder(a, b); }
__device__ inline float rgpu_fmod(float a, float b) { return fmodf(a, b); }
__device__ inline double rgpu_fmod(double a, double b) { return fmod(a, b); }
__device__ inline float rgpu_power(float a, float b) { return powf(a, b); }
__device__ inline double rgpu_power(double a, double b) { return pow(a, b); }
template <typename T> __device__ inline T rgpu_logaddexp(T a, T b) {
    if (a == b) return a + T(0.693147180559945309417232121458176568);
    T d = a - b;
    return d > 0 ? a + log1p(exp(-d)) : d <= 0 ? b + log1p(exp(d)) : d;
}
template <typename T> __device__ inline T rgpu_logaddexp2(T a, T b) {
    if (a == b) return a + 1;
    const T log2e = T(1.442695040888963407359924681001892137);
    T d = a - b;
    return d > 0 ? a + log2e * log1p(exp2(-d)) : d <= 0 ? b + log2e * log1p(exp2(d)) : d;
}
"""

_SAME = "{0}"
# A name alone is a function of the operands.
_ANY: dict[str, str] = {
    "add": "{0} + {1}", "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "negative": "-{0}", "positive": _SAME, "square": "{0} * {0}", "equal": "{0} == {1}", "not_equal": "{0} != {1}",
    "where": "{0} ? {1} : {2}", "copy": _SAME, "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite",
    **{name: name for name in "exp log log10 sqrt sin cos tan sinh cosh tanh".split()},
    **{f"arc{name}": f"a{name}" for name in "sin cos tan sinh cosh tanh".split()},
}  # fmt: skip
_COMPLEX = _ANY | {"absolute": "abs", "conjugate": "conj", "power": "pow", "reciprocal": "{T}(1) / {0}",
                   "real": "({0}).real()", "imag": "({0}).imag()", "angle": "arg"}  # fmt: skip
_REAL = _ANY | {
    "floor_divide": "rgpu_floor_divide", "remainder": "rgpu_remainder", "fmod": "rgpu_fmod", "power": "rgpu_power",
    "less": "{0} < {1}", "less_equal": "{0} <= {1}", "greater": "{0} > {1}", "greater_equal": "{0} >= {1}",
    "logical_not": "!{0}", "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_xor": "!{0} != !{1}",
    "minimum": "{0} != {0} || {0} < {1} ? {0} : {1}", "maximum": "{0} != {0} || {0} > {1} ? {0} : {1}",
    "fmin": "{1} != {1} || {0} < {1} ? {0} : {1}", "fmax": "{1} != {1} || {0} > {1} ? {0} : {1}",
    "absolute": "{0} < 0 ? -{0} : {0}", "sign": "{0} > 0 ? 1 : {0} < 0 ? -1 : 0",
    "reciprocal": "{0} == 0 ? 0 : 1 / {0}",
    "conjugate": _SAME, "real": _SAME, "imag": "0", "isnan": "false", "isinf": "false", "isfinite": "true",
    **dict.fromkeys(("floor", "ceil", "trunc", "fix", "rint"), _SAME),
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "invert": "~{0}",
    "left_shift": "rgpu_left_shift", "right_shift": "rgpu_right_shift",
}  # fmt: skip
_BOOL = _REAL | {"invert": "!{0}"}
_FLOAT = {name: text for name, text in _REAL.items() if name not in ("left_shift", "right_shift")} | {
    "absolute": "fabs", "fabs": "fabs", "sign": "{0} != {0} ? {0} : {0} > 0 ? 1 : {0} < 0 ? -1 : 0",
    "reciprocal": "1 / {0}", "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite", "signbit": "signbit",
    "arctan2": "atan2", "logaddexp": "rgpu_logaddexp", "logaddexp2": "rgpu_logaddexp2", "fix": "trunc",
    **dict.fromkeys(("deg2rad", "radians"), "{0} * {S}(0.0174532925199432957692369076848861)"),
    **dict.fromkeys(("rad2deg", "degrees"), "{0} * {S}(57.2957795130823208767981548141052)"),
    **{name: name for name in "exp2 expm1 log2 log1p cbrt floor ceil trunc rint hypot copysign ldexp".split()},
}  # fmt: skip
_FLOAT32 = _FLOAT | {"nextafter": "nextafter"}  # a half has neighbours of its own


def formula(name: str, inputs: list[str], dtypes: list[np.dtype], output: np.dtype, c_name: str) -> str:
    """C++ text of ``name`` on operands of these dtypes, converted to ``output``, whose C name is ``c_name``."""
    kinds = {dtype.kind for dtype in dtypes[-2:]} if name == "where" else {dtype.kind for dtype in dtypes[:1]}
    table = (
        _COMPLEX if "c" in kinds
        else (_FLOAT if any(dtype.char == "e" for dtype in dtypes) else _FLOAT32) if "f" in kinds
        else _BOOL if kinds == {"b"} else _REAL
    )  # fmt: skip
    template = table.get(name)
    if template is None and name in _FLOAT32 | _COMPLEX:
        raise TypeError(f"{name} of {dtypes[0]} is not supported")
    if template is None:
        raise NotImplementedError(f"{name} of {dtypes[0]} in a kernel")
    # a half is computed as a float
    texts = [f"((float)({x}))" if dtype.char == "e" else f"({x})" for x, dtype in zip(inputs, dtypes)]
    scalar = "double" if dtypes[0].char in "dD" else "float"
    if "{" in template:
        code = template.format(*texts, T=c_name, S=scalar)
    elif template in ("true", "false", "0"):
        code = template
    else:
        code = f"{template}({', '.join(texts)})"
    return f"(({c_name})({code}))"
