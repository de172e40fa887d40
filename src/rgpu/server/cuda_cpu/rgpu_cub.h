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

template <class T, int width = 32>
struct WarpReduce {
    struct TempStorage {};
    explicit WarpReduce(TempStorage&) {}
    // the result is the first lane's
    template <class F> T Reduce(T value, F f) const {
        for (int step = 1; step < width; step *= 2) value = f(value, __shfl_down_sync(~0u, value, step, width));
        return value;
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
    template <class F> T Reduce(T value, F f, int count = x * y * z) const {
        const int i = rgpu::block->current->linear;
        place.values[i] = value;
        __syncthreads();
        if (i == 0)
            for (int k = 1; k < count; ++k) value = f(value, place.values[k]);
        return value;
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
