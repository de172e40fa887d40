// CUB's reductions over a warp and a block, inside kernels. Every include of <cub/...> means this file.
#pragma once
#include <functional>

namespace cub {
struct Sum {
    template <class T> T operator()(const T& a, const T& b) const { return a + b; }
};
struct Max {
    template <class T> T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
struct Min {
    template <class T> T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};

// halves are added up as floats
template <class T> struct wide { using type = T; };
template <class F> struct wide<rgpu::narrow_float<F>> { using type = float; };

template <class T, int width = 32>
struct WarpReduce {
    struct TempStorage {};
    explicit WarpReduce(TempStorage&) {}
    // the result is the first lane's
    template <class F> T Reduce(T given, F f) const {
        typename wide<T>::type value = given;
        for (int step = 1; step < width; step *= 2) value = f(value, __shfl_down_sync(~0u, value, step, width));
        return (T)value;
    }
    T Sum(T value) const { return Reduce(value, cub::Sum()); }
};

template <class T, int x, int = 0, int y = 1, int z = 1>
struct BlockReduce {
    struct TempStorage {
        T values[x * y * z];
    };
    TempStorage& place;
    explicit BlockReduce(TempStorage& place) : place(place) {}
    // the result is the first thread's
    template <class F> T Reduce(T given, F f, int count = x * y * z) const {
        using W = typename wide<T>::type;
        const int i = rgpu::block->current->linear;
        place.values[i] = given;
        __syncthreads();
        W value = given;
        if (i == 0)
            for (int k = 1; k < count; ++k) value = f(value, (W)place.values[k]);
        return (T)value;
    }
    T Sum(T value) const { return Reduce(value, cub::Sum()); }
    T Sum(T value, int count) const { return Reduce(value, cub::Sum(), count); }
};
}  // namespace cub

namespace cuda {
namespace std {
using ::std::plus;
}
template <class T = void> struct maximum : cub::Max {};
template <class T = void> struct minimum : cub::Min {};
}  // namespace cuda
