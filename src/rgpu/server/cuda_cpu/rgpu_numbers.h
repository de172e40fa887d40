// Numbers that CUDA has and C++ lacks: complex as Thrust's (and CuPy's `complex`), cuComplex, half and bfloat16.
#pragma once

namespace thrust {
template <class T>
struct complex {
    T re, im;
    using value_type = T;
    complex() = default;
    constexpr complex(T re, T im = T()) : re(re), im(im) {}
    template <class U> constexpr complex(const complex<U>& z) : re((T)z.re), im((T)z.im) {}
    constexpr complex(const std::complex<T>& z) : re(z.real()), im(z.imag()) {}
    operator std::complex<T>() const { return {re, im}; }
    constexpr T real() const { return re; }
    constexpr T imag() const { return im; }
    void real(T x) { re = x; }
    void imag(T x) { im = x; }
    complex& operator=(T x) { re = x, im = T(); return *this; }
    template <class U> complex& operator=(const complex<U>& z) { re = (T)z.re, im = (T)z.im; return *this; }
    complex operator-() const { return {-re, -im}; }
    complex operator+() const { return *this; }
    template <class U> complex& operator+=(const U& x) { return *this = complex(*this + x); }
    template <class U> complex& operator-=(const U& x) { return *this = complex(*this - x); }
    template <class U> complex& operator*=(const U& x) { return *this = complex(*this * x); }
    template <class U> complex& operator/=(const U& x) { return *this = complex(*this / x); }
    explicit operator bool() const { return re != T() || im != T(); }
};

template <class T, class U> using wider = complex<std::common_type_t<T, U>>;
template <class T, class U> using wider_if = std::enable_if_t<std::is_arithmetic<U>::value, wider<T, U>>;

template <class T, class U> wider<T, U> operator+(const complex<T>& a, const complex<U>& b) { return {a.re + b.re, a.im + b.im}; }
template <class T, class U> wider<T, U> operator-(const complex<T>& a, const complex<U>& b) { return {a.re - b.re, a.im - b.im}; }
template <class T, class U> wider<T, U> operator*(const complex<T>& a, const complex<U>& b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// A product as it is: g++ 12 fuses a sum and a difference of products whatever -ffp-contract says.
template <class R> inline R rounded(R x) {
    asm("" : "+m"(x));
    return x;
}
template <class T, class U> wider<T, U> operator/(const complex<T>& a, const complex<U>& b) {
    using R = std::common_type_t<T, U>;  // Smith's method: no overflow in between
    const R c = b.re, d = b.im;
    if ((c < 0 ? -c : c) >= (d < 0 ? -d : d)) {
        if (c == 0 && d == 0) return {a.re / c, a.im / c};
        const R ratio = d / c, scale = R(1) / (c + d * ratio);
        const R re = rounded<R>(a.re * ratio), im = rounded<R>(a.im * ratio);
        return {(a.re + im) * scale, (a.im - re) * scale};
    }
    const R ratio = c / d, scale = R(1) / (c * ratio + d);
    const R re = rounded<R>(a.re * ratio), im = rounded<R>(a.im * ratio);
    return {(re + a.im) * scale, (im - a.re) * scale};
}
#define RGPU_MIXED(op)                                                                                              \
    template <class T, class U> wider_if<T, U> operator op(const complex<T>& a, U b) { return a op complex<U>(b); } \
    template <class T, class U> wider_if<T, U> operator op(U a, const complex<T>& b) { return complex<U>(a) op b; }
RGPU_MIXED(+)
RGPU_MIXED(-)
RGPU_MIXED(*)
#undef RGPU_MIXED
template <class T, class U> wider_if<T, U> operator/(const complex<T>& a, U b) { return {a.re / b, a.im / b}; }
template <class T, class U> wider_if<T, U> operator/(U a, const complex<T>& b) { return complex<U>(a) / b; }

#define RGPU_COMPARE(op, expression)                                                                      \
    template <class T, class U> bool operator op(const complex<T>& a, const complex<U>& b) { return expression; } \
    template <class T, class U> std::enable_if_t<std::is_arithmetic<U>::value, bool> operator op(const complex<T>& a, U b) { return a op complex<U>(b); } \
    template <class T, class U> std::enable_if_t<std::is_arithmetic<U>::value, bool> operator op(U a, const complex<T>& b) { return complex<U>(a) op b; }
RGPU_COMPARE(==, a.re == b.re && a.im == b.im)
RGPU_COMPARE(!=, a.re != b.re || a.im != b.im)
RGPU_COMPARE(<, a.re == b.re ? a.im < b.im : a.re < b.re)
RGPU_COMPARE(>, a.re == b.re ? a.im > b.im : a.re > b.re)
RGPU_COMPARE(<=, a.re == b.re ? a.im <= b.im : a.re <= b.re)
RGPU_COMPARE(>=, a.re == b.re ? a.im >= b.im : a.re >= b.re)
#undef RGPU_COMPARE

// NumPy's way, to the last place: scaled by the larger part.
template <class T> T magnitude(T x, T y) {
    x = std::fabs(x), y = std::fabs(y);
    const T large = x < y ? y : x, small = x < y ? x : y;
    if (std::isinf(large) || std::isinf(small)) return std::numeric_limits<T>::infinity();
    if (large == 0 || x != x || y != y) return x + y;
    const T ratio = small / large;
    return std::sqrt(std::fma(ratio, ratio, T(1))) * large;
}
template <class T> T abs(const complex<T>& z) { return magnitude(z.re, z.im); }
template <class T> T arg(const complex<T>& z) { return std::atan2(z.im, z.re); }
template <class T> T norm(const complex<T>& z) { return z.re * z.re + z.im * z.im; }
template <class T> complex<T> conj(const complex<T>& z) { return {z.re, -z.im}; }
template <class T> complex<T> polar(T m, T theta = T()) { return {m * std::cos(theta), m * std::sin(theta)}; }
template <class T> bool isnan(const complex<T>& z) { return std::isnan(z.re) || std::isnan(z.im); }
template <class T> bool isinf(const complex<T>& z) { return std::isinf(z.re) || std::isinf(z.im); }
template <class T> bool isfinite(const complex<T>& z) { return std::isfinite(z.re) && std::isfinite(z.im); }
#define RGPU_UNARY(name) \
    template <class T> complex<T> name(const complex<T>& z) { return std::name(std::complex<T>(z)); }
RGPU_UNARY(exp) RGPU_UNARY(log) RGPU_UNARY(log10) RGPU_UNARY(sqrt) RGPU_UNARY(proj)
RGPU_UNARY(sin) RGPU_UNARY(cos) RGPU_UNARY(tan) RGPU_UNARY(asin) RGPU_UNARY(acos) RGPU_UNARY(atan)
RGPU_UNARY(sinh) RGPU_UNARY(cosh) RGPU_UNARY(tanh) RGPU_UNARY(asinh) RGPU_UNARY(acosh) RGPU_UNARY(atanh)
#undef RGPU_UNARY
template <class T> complex<T> pow(const complex<T>& a, const complex<T>& b) { return std::pow(std::complex<T>(a), std::complex<T>(b)); }
template <class T, class U> wider_if<T, U> pow(const complex<T>& a, U b) { return pow(wider<T, U>(a), wider<T, U>(complex<U>(b))); }
template <class T, class U> wider_if<T, U> pow(U a, const complex<T>& b) { return pow(wider<T, U>(complex<U>(a)), wider<T, U>(b)); }
}  // namespace thrust
using thrust::complex;
using thrust::abs;
using thrust::arg;
using thrust::conj;
using thrust::norm;
using thrust::polar;

// ---- cuComplex.h ---------------------------------------------------------------------------------
typedef float2 cuFloatComplex;
typedef float2 cuComplex;
typedef double2 cuDoubleComplex;
#define RGPU_CUCOMPLEX(T, C, R, s, make)                                                                  \
    static inline C make(R re, R im) { return {re, im}; }                                                 \
    static inline R cuCreal##s(C z) { return z.x; }                                                       \
    static inline R cuCimag##s(C z) { return z.y; }                                                       \
    static inline C cuConj##s(C z) { return {z.x, -z.y}; }                                                \
    static inline C cuCadd##s(C a, C b) { return {a.x + b.x, a.y + b.y}; }                                \
    static inline C cuCsub##s(C a, C b) { return {a.x - b.x, a.y - b.y}; }                                \
    static inline C cuCmul##s(C a, C b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }        \
    static inline C cuCdiv##s(C a, C b) {                                                                 \
        thrust::complex<R> z = thrust::complex<R>(a.x, a.y) / thrust::complex<R>(b.x, b.y);               \
        return {z.re, z.im};                                                                              \
    }                                                                                                     \
    static inline R cuCabs##s(C z) { return thrust::magnitude(z.x, z.y); }                                       \
    static inline C cuCfma##s(C a, C b, C c) { return cuCadd##s(cuCmul##s(a, b), c); }
RGPU_CUCOMPLEX(float, cuFloatComplex, float, f, make_cuFloatComplex)
RGPU_CUCOMPLEX(double, cuDoubleComplex, double, , make_cuDoubleComplex)
#undef RGPU_CUCOMPLEX
static inline cuComplex make_cuComplex(float re, float im) { return {re, im}; }
static inline cuDoubleComplex cuComplexFloatToDouble(cuComplex z) { return {z.x, z.y}; }
static inline cuComplex cuComplexDoubleToFloat(cuDoubleComplex z) { return {(float)z.x, (float)z.y}; }
static inline cuComplex cuCadd(cuComplex a, cuComplex b) { return cuCaddf(a, b); }
static inline cuComplex cuCsub(cuComplex a, cuComplex b) { return cuCsubf(a, b); }
static inline cuComplex cuCmul(cuComplex a, cuComplex b) { return cuCmulf(a, b); }
static inline cuComplex cuCdiv(cuComplex a, cuComplex b) { return cuCdivf(a, b); }

// ---- 16-bit floating point: stored narrow, computed as float -------------------------------------
namespace rgpu {
struct half_format {
    static uint16_t narrow(float x) {
        const _Float16 h = (_Float16)x;
        uint16_t result;
        memcpy(&result, &h, 2);
        return result;
    }
    static float widen(uint16_t x) {
        _Float16 h;
        memcpy(&h, &x, 2);
        return (float)h;
    }
};
struct bfloat_format {
    static uint16_t narrow(float x) {
        uint32_t u;
        memcpy(&u, &x, 4);
        if (x != x) return (uint16_t)(u >> 16 | 0x40);
        return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);  // to nearest, ties to even
    }
    static float widen(uint16_t x) {
        const uint32_t u = (uint32_t)x << 16;
        float result;
        memcpy(&result, &u, 4);
        return result;
    }
};
template <class Format>
struct narrow_float {
    uint16_t raw;
    narrow_float() = default;
    template <class U, class = std::enable_if_t<std::is_arithmetic<U>::value>>
    narrow_float(U x) : raw(Format::narrow((float)x)) {}
    template <class F> explicit narrow_float(const narrow_float<F>& x) : raw(Format::narrow((float)x)) {}
    operator float() const { return Format::widen(raw); }
    template <class U> narrow_float& operator+=(U x) { return *this = narrow_float((float)*this + (float)x); }
    template <class U> narrow_float& operator-=(U x) { return *this = narrow_float((float)*this - (float)x); }
    template <class U> narrow_float& operator*=(U x) { return *this = narrow_float((float)*this * (float)x); }
    template <class U> narrow_float& operator/=(U x) { return *this = narrow_float((float)*this / (float)x); }
    bool isnan() const { return (float)*this != (float)*this; }
    bool iszero() const { return (float)*this == 0; }
};
#define RGPU_NARROW(op) \
    template <class F> narrow_float<F> operator op(narrow_float<F> a, narrow_float<F> b) { return narrow_float<F>((float)a op (float)b); }
RGPU_NARROW(+) RGPU_NARROW(-) RGPU_NARROW(*) RGPU_NARROW(/)
#undef RGPU_NARROW
template <class F> narrow_float<F> operator-(narrow_float<F> a) { return narrow_float<F>(-(float)a); }
template <class F> narrow_float<F> min(narrow_float<F> a, narrow_float<F> b) { return (float)b < (float)a ? b : a; }
template <class F> narrow_float<F> max(narrow_float<F> a, narrow_float<F> b) { return (float)a < (float)b ? b : a; }
template <class F> bool isnan(narrow_float<F> a) { return a.isnan(); }
template <class F> bool isinf(narrow_float<F> a) { return std::isinf((float)a); }
}  // namespace rgpu
using float16 = rgpu::narrow_float<rgpu::half_format>;
using half = float16;
using __half = float16;
using bfloat16 = rgpu::narrow_float<rgpu::bfloat_format>;
using __nv_bfloat16 = bfloat16;
struct half2 { half x, y; };
using __half2 = half2;
static inline half __float2half(float x) { return half(x); }
static inline half __float2half_rn(float x) { return half(x); }
static inline half __double2half(double x) { return half(x); }
static inline half __int2half_rn(int x) { return half(x); }
static inline float __half2float(half x) { return (float)x; }
static inline half __hadd(half a, half b) { return a + b; }
static inline half __hsub(half a, half b) { return a - b; }
static inline half __hmul(half a, half b) { return a * b; }
static inline half __hdiv(half a, half b) { return a / b; }
static inline half __hneg(half a) { return -a; }
static inline half __hfma(half a, half b, half c) { return half(fmaf(a, b, c)); }
static inline bool __hlt(half a, half b) { return (float)a < (float)b; }
static inline bool __hgt(half a, half b) { return (float)a > (float)b; }
static inline bool __heq(half a, half b) { return (float)a == (float)b; }
static inline half hsqrt(half a) { return half(sqrtf(a)); }
static inline half hexp(half a) { return half(expf(a)); }
static inline half hlog(half a) { return half(logf(a)); }
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
static inline half2 __hadd2(half2 a, half2 b) { return {a.x + b.x, a.y + b.y}; }
static inline half2 __hmul2(half2 a, half2 b) { return {a.x * b.x, a.y * b.y}; }
static inline float2 __half22float2(half2 a) { return {(float)a.x, (float)a.y}; }
static inline bfloat16 __float2bfloat16(float x) { return bfloat16(x); }
static inline float __bfloat162float(bfloat16 x) { return (float)x; }
