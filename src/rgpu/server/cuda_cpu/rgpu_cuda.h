// CUDA C++ on a CPU: what a kernel's source expects to find, for g++ or clang++.
// Keywords, built-in variables, vector types, mathematics, atomics. Threads of a block are in rgpu_threads.h,
// complex numbers and halves in rgpu_numbers.h, CuPy's array classes in rgpu_arrays.h.
// Nothing here may depend on who compiles: the source it serves lives in namespace rgpu_user.
#pragma once
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <complex>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

// a loop whose rounds are a GPU's threads: none may depend on another
#ifdef __clang__
#define RGPU_INDEPENDENT "clang loop vectorize(assume_safety)"
#else
#define RGPU_INDEPENDENT "GCC ivdep"
#endif

// ---- keywords ------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __noinline__
#define __forceinline__ __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local
#define __CUDACC__ 1
#define __CUDA_ARCH__ 700
#define CUDART_VERSION 12000
#define CUDA_VERSION 12000
#define CUDART_INF_F (__builtin_inff())
#define CUDART_INF (__builtin_inf())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_PI 3.14159265358979323846
#define CUDART_PI_F 3.14159265358979323846f

// ---- vector types --------------------------------------------------------------------------------
#define RGPU_VECTOR(T, name, align2, align4)                                                              \
    struct name##1 { T x; };                                                                              \
    struct __attribute__((aligned(align2))) name##2 { T x, y; };                                          \
    struct name##3 { T x, y, z; };                                                                        \
    struct __attribute__((aligned(align4))) name##4 { T x, y, z, w; };                                    \
    static inline name##1 make_##name##1(T x) { return {x}; }                                             \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                     \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                             \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
RGPU_VECTOR(signed char, char, 2, 4)
RGPU_VECTOR(unsigned char, uchar, 2, 4)
RGPU_VECTOR(short, short, 4, 8)
RGPU_VECTOR(unsigned short, ushort, 4, 8)
RGPU_VECTOR(int, int, 8, 16)
RGPU_VECTOR(unsigned int, uint, 8, 16)
RGPU_VECTOR(long, long, 16, 16)
RGPU_VECTOR(unsigned long, ulong, 16, 16)
RGPU_VECTOR(long long, longlong, 16, 16)
RGPU_VECTOR(unsigned long long, ulonglong, 16, 16)
RGPU_VECTOR(float, float, 8, 16)
RGPU_VECTOR(double, double, 16, 16)
#undef RGPU_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#include "rgpu_numbers.h"

// ---- mathematics ---------------------------------------------------------------------------------
namespace rgpu {
template <class A, class B>
using common = std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value, std::common_type_t<A, B>>;

// Wichura's AS241: the quantile of the normal distribution, to 16 digits.
inline double quantile_tail(double r) {
    if (r <= 5) {
        r -= 1.6;
        return (((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r +
                    1.27045825245236838258e0) * r + 3.64784832476320460504e0) * r + 5.76949722146069140550e0) * r +
                 4.63033784615654529590e0) * r + 1.42343711074968357734e0) /
               (((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r + 1.51986665636164571966e-2) * r +
                    1.48103976427480074590e-1) * r + 6.89767334985100004550e-1) * r + 1.67638483018380384940e0) * r +
                 2.05319162663775882187e0) * r + 1.0);
    }
    r -= 5;
    return (((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r +
                2.65321895265761230930e-2) * r + 2.96560571828504891230e-1) * r + 1.78482653991729133580e0) * r +
             5.46378491116411436990e0) * r + 6.65790464350110377720e0) /
           (((((((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r +
                7.86869131145613259100e-4) * r + 1.48753612908506148525e-2) * r + 1.36929880922735805310e-1) * r +
             5.99832206555887937690e-1) * r + 1.0);
}

// p below one half counts from the left tail, so that tiny probabilities keep their digits.
inline double quantile(double p) {
    if (!(p > 0 && p < 1)) return p == 0 ? -CUDART_INF : p == 1 ? CUDART_INF : CUDART_NAN;
    const double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        const double r = 0.180625 - q * q;
        return q * (((((((2.5090809287301226727e+3 * r + 3.3430575583588128105e+4) * r + 6.7265770927008700853e+4) * r +
                        4.5921953931549871457e+4) * r + 1.3731693765509461125e+4) * r + 1.9715909503065514427e+3) * r +
                     1.3314166789178437745e+2) * r + 3.3871328727963666080e0) /
               (((((((5.2264952788528545610e+3 * r + 2.8729085735721942674e+4) * r + 3.9307895800092710610e+4) * r +
                    2.1213794301586595867e+4) * r + 5.3941960214247511077e+3) * r + 6.8718700749205790830e+2) * r +
                 4.2313330701600911252e+1) * r + 1.0);
    }
    return q < 0 ? -quantile_tail(sqrt(-log(p))) : quantile_tail(sqrt(-log(1 - p)));
}
}  // namespace rgpu

template <class A, class B>
constexpr rgpu::common<A, B> min(A a, B b) {
    using C = rgpu::common<A, B>;
    if constexpr (std::is_floating_point<C>::value) return (C)a != (C)a ? (C)b : ((C)b < (C)a ? (C)b : (C)a);
    else return (C)b < (C)a ? (C)b : (C)a;
}
template <class A, class B>
constexpr rgpu::common<A, B> max(A a, B b) {
    using C = rgpu::common<A, B>;
    if constexpr (std::is_floating_point<C>::value) return (C)a != (C)a ? (C)b : ((C)a < (C)b ? (C)b : (C)a);
    else return (C)a < (C)b ? (C)b : (C)a;
}
static inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
static inline long long llmin(long long a, long long b) { return a < b ? a : b; }
static inline long long llmax(long long a, long long b) { return a < b ? b : a; }

// In the namespace of the kernels: the C library may declare some of these names too.
namespace rgpu_user {
static inline double normcdfinv(double p) { return rgpu::quantile(p); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static inline double erfcinv(double x) {
    return x <= 1 ? -rgpu::quantile(0.5 * x) * 0.70710678118654752440 : rgpu::quantile(0.5 * (2 - x)) * 0.70710678118654752440;
}
static inline double erfinv(double x) { return x < 0 ? -erfcinv(1 + x) : erfcinv(1 - x); }
static inline double erfcx(double x) {
    if (x < 26) return exp(x * x) * erfc(x);
    const double t = 1 / (x * x);
    return (1 - t / 2 + 3 * t * t / 4) / (x * 1.77245385090551602730);
}
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline double rcbrt(double x) { return 1 / cbrt(x); }
static inline double sinpi(double x) { return sin(CUDART_PI * fmod(x, 2)); }
static inline double cospi(double x) { return cos(CUDART_PI * fmod(x, 2)); }
static inline double cyl_bessel_i0(double x) { return std::cyl_bessel_i(0, fabs(x)); }
static inline double cyl_bessel_i1(double x) { return x < 0 ? -std::cyl_bessel_i(1, -x) : std::cyl_bessel_i(1, x); }
#define RGPU_FLOAT_OF(name)                                                    \
    static inline float name(float x) { return (float)name((double)x); }       \
    static inline float name##f(float x) { return (float)name((double)x); }    \
    template <class T>                                                         \
    static inline std::enable_if_t<std::is_integral<T>::value, double> name(T x) { return name((double)x); }
RGPU_FLOAT_OF(normcdfinv)
RGPU_FLOAT_OF(normcdf)
RGPU_FLOAT_OF(erfcinv)
RGPU_FLOAT_OF(erfinv)
RGPU_FLOAT_OF(erfcx)
RGPU_FLOAT_OF(rcbrt)
RGPU_FLOAT_OF(sinpi)
RGPU_FLOAT_OF(cospi)
RGPU_FLOAT_OF(cyl_bessel_i0)
RGPU_FLOAT_OF(cyl_bessel_i1)
#undef RGPU_FLOAT_OF
static inline float rsqrt(float x) { return 1 / sqrtf(x); }
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float fdividef(float a, float b) { return a / b; }
static inline void sincos(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
static inline void sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }  // libm's is hidden by the above
static inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
static inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
static inline double norm3d(double a, double b, double c) { return sqrt(a * a + b * b + c * c); }
static inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
static inline void sincospi(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
static inline double norm4d(double a, double b, double c, double d) { return sqrt(a * a + b * b + c * c + d * d); }
static inline float norm4df(float a, float b, float c, float d) { return sqrtf(a * a + b * b + c * c + d * d); }
static inline double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
static inline float rnorm3df(float a, float b, float c) { return 1 / norm3df(a, b, c); }
static inline double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }
static inline float rnorm4df(float a, float b, float c, float d) { return 1 / norm4df(a, b, c, d); }
static inline double rhypot(double a, double b) { return 1 / hypot(a, b); }
static inline float rhypotf(float a, float b) { return 1 / hypotf(a, b); }
static inline double norm(int n, const double* a) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += a[i] * a[i];
    return sqrt(sum);
}
static inline float normf(int n, const float* a) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += a[i] * a[i];
    return sqrtf(sum);
}
static inline double rnorm(int n, const double* a) { return 1 / norm(n, a); }
static inline float rnormf(int n, const float* a) { return 1 / normf(n, a); }

static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return powf(10, x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
#define RGPU_ROUNDED(suffix)                                                                              \
    static inline float __fadd_##suffix(float a, float b) { return a + b; }                               \
    static inline float __fsub_##suffix(float a, float b) { return a - b; }                               \
    static inline float __fmul_##suffix(float a, float b) { return a * b; }                               \
    static inline float __fdiv_##suffix(float a, float b) { return a / b; }                               \
    static inline float __fmaf_##suffix(float a, float b, float c) { return fmaf(a, b, c); }              \
    static inline float __frcp_##suffix(float a) { return 1 / a; }                                        \
    static inline float __fsqrt_##suffix(float a) { return sqrtf(a); }                                    \
    static inline double __drcp_##suffix(double a) { return 1 / a; }                                      \
    static inline double __dsqrt_##suffix(double a) { return sqrt(a); }                                   \
    static inline double __dadd_##suffix(double a, double b) { return a + b; }                            \
    static inline double __dsub_##suffix(double a, double b) { return a - b; }                            \
    static inline double __dmul_##suffix(double a, double b) { return a * b; }                            \
    static inline double __ddiv_##suffix(double a, double b) { return a / b; }                            \
    static inline double __fma_##suffix(double a, double b, double c) { return fma(a, b, c); }
RGPU_ROUNDED(rn)
RGPU_ROUNDED(rz)
RGPU_ROUNDED(ru)
RGPU_ROUNDED(rd)
#undef RGPU_ROUNDED
static inline float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
}  // namespace rgpu_user

// ---- integers and bits ---------------------------------------------------------------------------
namespace rgpu {
template <class To, class From>
inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To result;
    memcpy(&result, &x, sizeof result);
    return result;
}
}  // namespace rgpu
static inline int __float_as_int(float x) { return rgpu::bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return rgpu::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return rgpu::bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return rgpu::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return rgpu::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return rgpu::bits<double>(x); }
static inline int __double2hiint(double x) { return (int)(rgpu::bits<long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)rgpu::bits<long long>(x); }
static inline double __hiloint2double(int hi, int lo) {
    return rgpu::bits<double>((long long)((unsigned long long)(unsigned)hi << 32 | (unsigned)lo));
}
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
// Integers of floating-point numbers are rounded as asked, the others to the nearest.
#define RGPU_CONVERTED(suffix, round)                                                               \
    static inline int __float2int_##suffix(float x) { return (int)round(x); }                       \
    static inline unsigned __float2uint_##suffix(float x) { return (unsigned)round(x); }            \
    static inline long long __float2ll_##suffix(float x) { return (long long)round(x); }            \
    static inline unsigned long long __float2ull_##suffix(float x) { return (unsigned long long)round(x); }   \
    static inline int __double2int_##suffix(double x) { return (int)round(x); }                     \
    static inline unsigned __double2uint_##suffix(double x) { return (unsigned)round(x); }          \
    static inline long long __double2ll_##suffix(double x) { return (long long)round(x); }          \
    static inline unsigned long long __double2ull_##suffix(double x) { return (unsigned long long)round(x); } \
    static inline float __double2float_##suffix(double x) { return (float)x; }                      \
    static inline float __int2float_##suffix(int x) { return (float)x; }                            \
    static inline float __uint2float_##suffix(unsigned x) { return (float)x; }                      \
    static inline float __ll2float_##suffix(long long x) { return (float)x; }                       \
    static inline float __ull2float_##suffix(unsigned long long x) { return (float)x; }             \
    static inline double __ll2double_##suffix(long long x) { return (double)x; }                    \
    static inline double __ull2double_##suffix(unsigned long long x) { return (double)x; }
RGPU_CONVERTED(rn, std::rint)
RGPU_CONVERTED(rz, std::trunc)
RGPU_CONVERTED(ru, std::ceil)
RGPU_CONVERTED(rd, std::floor)
#undef RGPU_CONVERTED
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long r = 0;
    for (int i = 0; i < 64; ++i) r = r << 1 | (x >> i & 1);
    return r;
}
static inline unsigned __brev(unsigned x) { return (unsigned)(__brevll(x) >> 32); }
static inline int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
static inline unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
static inline unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
static inline unsigned __sad(int a, int b, unsigned c) { return (unsigned)(a < b ? (long long)b - a : (long long)a - b) + c; }
static inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
static inline int __mul24(int a, int b) { return a * b; }
static inline unsigned __umul24(unsigned a, unsigned b) { return a * b; }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
    const unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) r |= (unsigned)(bytes >> (selectors >> 4 * i & 7) * 8 & 255) << 8 * i;
    return r;
}
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
static inline long long clock64() {
#if defined(__x86_64__)
    return (long long)__builtin_ia32_rdtsc();
#else
    return 0;
#endif
}
namespace rgpu_user {  // where it hides the C library's
static inline clock_t clock() { return (clock_t)clock64(); }
}
static inline void __nanosleep(unsigned) {}
static inline void __trap() { __builtin_trap(); }

// ---- atomics: blocks of one launch run on several cores ------------------------------------------
namespace rgpu {
template <int size> struct word;
template <> struct word<1> { using type = uint8_t; };
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };

template <class T, class Change>
inline T atomic(T* address, Change change) {
    using W = typename word<sizeof(T)>::type;
    W* place = reinterpret_cast<W*>(address);
    W seen = __atomic_load_n(place, __ATOMIC_RELAXED);
    for (;;) {
        const T old = bits<T>(seen);
        if (__atomic_compare_exchange_n(place, &seen, bits<W>((T)change(old)), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old;
    }
}
template <class T> struct same { using type = T; };
template <class T> using same_t = typename same<T>::type;  // a parameter that decides no template argument
}  // namespace rgpu
#define RGPU_ATOMIC(name, expression)                                                                     \
    template <class T> static inline T name(T* p, rgpu::same_t<T> v) {                                    \
        return rgpu::atomic(p, [v](T old) -> T { return expression; });                                   \
    }                                                                                                     \
    template <class T> static inline T name##_block(T* p, rgpu::same_t<T> v) { return name(p, v); }       \
    template <class T> static inline T name##_system(T* p, rgpu::same_t<T> v) { return name(p, v); }
RGPU_ATOMIC(atomicAdd, (T)(old + v))
RGPU_ATOMIC(atomicSub, (T)(old - v))
RGPU_ATOMIC(atomicExch, ((void)old, v))
RGPU_ATOMIC(atomicMin, v < old ? v : old)
RGPU_ATOMIC(atomicMax, old < v ? v : old)
RGPU_ATOMIC(atomicAnd, (T)(old & v))
RGPU_ATOMIC(atomicOr, (T)(old | v))
RGPU_ATOMIC(atomicXor, (T)(old ^ v))
RGPU_ATOMIC(atomicInc, old >= v ? T(0) : (T)(old + 1))
RGPU_ATOMIC(atomicDec, old == T(0) || old > v ? v : (T)(old - 1))
#undef RGPU_ATOMIC
template <class T> static inline T atomicCAS(T* p, rgpu::same_t<T> compare, rgpu::same_t<T> v) {
    return rgpu::atomic(p, [compare, v](T old) -> T { return old == compare ? v : old; });
}
// CUDA has functions, no templates, for these types: a client's template of the same name does not take them.
#define RGPU_OVERLOAD(name, T) static inline T name(T* p, T v) { return name<T>(p, v); }
#define RGPU_OVERLOADS(name) \
    RGPU_OVERLOAD(name, int) RGPU_OVERLOAD(name, unsigned) RGPU_OVERLOAD(name, unsigned long long)
RGPU_OVERLOADS(atomicAdd)
RGPU_OVERLOAD(atomicAdd, float)
RGPU_OVERLOADS(atomicExch)
RGPU_OVERLOAD(atomicExch, float)
RGPU_OVERLOADS(atomicMin)
RGPU_OVERLOAD(atomicMin, long long)
RGPU_OVERLOADS(atomicMax)
RGPU_OVERLOAD(atomicMax, long long)
RGPU_OVERLOADS(atomicAnd)
RGPU_OVERLOADS(atomicOr)
RGPU_OVERLOADS(atomicXor)
#undef RGPU_OVERLOADS
#undef RGPU_OVERLOAD
namespace rgpu_user {  // a client's own overload stands beside them and hides none
using ::atomicAdd;
using ::atomicAnd;
using ::atomicCAS;
using ::atomicDec;
using ::atomicExch;
using ::atomicInc;
using ::atomicMax;
using ::atomicMin;
using ::atomicOr;
using ::atomicSub;
using ::atomicXor;
}  // namespace rgpu_user
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#include "rgpu_arrays.h"
#include "rgpu_threads.h"
