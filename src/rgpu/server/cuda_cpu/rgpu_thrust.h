// Thrust's algorithms inside kernels: each thread runs its own, so all of them are loops of the C++ library.
// Every include of <thrust/...> means this file, but for complex.h, which rgpu_numbers.h is.
#pragma once
#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

namespace thrust {
struct execution_policy {};
constexpr execution_policy host, device, seq;

using std::equal_to;
using std::greater;
using std::greater_equal;
using std::less;
using std::less_equal;
using std::logical_and;
using std::logical_not;
using std::logical_or;
using std::make_pair;
using std::minus;
using std::multiplies;
using std::negate;
using std::not_equal_to;
using std::pair;
using std::plus;
template <class T = void> struct minimum {
    T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <class T = void> struct maximum {
    T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
template <class T> struct identity {
    const T& operator()(const T& x) const { return x; }
};
template <class I> using value_of = typename std::iterator_traits<I>::value_type;

template <class T> struct constant_iterator {
    T value;
    T operator*() const { return value; }
    T operator[](ptrdiff_t) const { return value; }
    constant_iterator operator+(ptrdiff_t) const { return *this; }
};
template <class T> inline constant_iterator<T> make_constant_iterator(T value) { return {value}; }
template <class T> struct counting_iterator {
    T value;
    T operator*() const { return value; }
    T operator[](ptrdiff_t i) const { return value + (T)i; }
    counting_iterator operator+(ptrdiff_t i) const { return {(T)(value + i)}; }
};
template <class T> inline counting_iterator<T> make_counting_iterator(T value) { return {value}; }

#define RGPU_STD(name)                                                                                    \
    template <class... A> inline auto name(const execution_policy&, A... a) { return std::name(a...); }
RGPU_STD(adjacent_difference) RGPU_STD(all_of) RGPU_STD(any_of) RGPU_STD(copy) RGPU_STD(copy_if) RGPU_STD(copy_n)
RGPU_STD(count) RGPU_STD(count_if) RGPU_STD(equal) RGPU_STD(equal_range) RGPU_STD(fill) RGPU_STD(fill_n)
RGPU_STD(find) RGPU_STD(find_if) RGPU_STD(find_if_not) RGPU_STD(for_each) RGPU_STD(generate) RGPU_STD(inner_product)
RGPU_STD(is_sorted) RGPU_STD(is_sorted_until) RGPU_STD(max_element) RGPU_STD(merge) RGPU_STD(min_element)
RGPU_STD(minmax_element) RGPU_STD(mismatch) RGPU_STD(none_of) RGPU_STD(partition) RGPU_STD(remove)
RGPU_STD(remove_copy) RGPU_STD(remove_if) RGPU_STD(replace) RGPU_STD(replace_copy) RGPU_STD(replace_if)
RGPU_STD(reverse) RGPU_STD(reverse_copy) RGPU_STD(set_difference) RGPU_STD(set_intersection)
RGPU_STD(set_symmetric_difference) RGPU_STD(set_union) RGPU_STD(sort) RGPU_STD(stable_partition)
RGPU_STD(stable_sort) RGPU_STD(swap_ranges) RGPU_STD(transform) RGPU_STD(unique) RGPU_STD(unique_copy)
#undef RGPU_STD

// one value, or as many as a range holds
#define RGPU_SEARCH(name, found)                                                                          \
    template <class I, class T> inline auto name(const execution_policy&, I first, I last, const T& value) { \
        return std::name(first, last, value);                                                             \
    }                                                                                                     \
    template <class I, class T, class C>                                                                  \
    inline auto name(const execution_policy&, I first, I last, const T& value, C less) {                  \
        return std::name(first, last, value, less);                                                       \
    }                                                                                                     \
    template <class I, class V, class O>                                                                  \
    inline O name(const execution_policy&, I first, I last, V values, V end, O out) {                     \
        for (; values != end; ++values, ++out) *out = (found);                                            \
        return out;                                                                                       \
    }
RGPU_SEARCH(binary_search, std::binary_search(first, last, *values))
RGPU_SEARCH(lower_bound, std::lower_bound(first, last, *values) - first)
RGPU_SEARCH(upper_bound, std::upper_bound(first, last, *values) - first)
#undef RGPU_SEARCH

template <class I, class T, class F> inline T reduce(const execution_policy&, I first, I last, T init, F f) {
    for (; first != last; ++first) init = f(init, *first);
    return init;
}
template <class I, class T> inline T reduce(const execution_policy& p, I first, I last, T init) {
    return reduce(p, first, last, init, [](T a, T b) -> T { return a + b; });
}
template <class I> inline value_of<I> reduce(const execution_policy& p, I first, I last) {
    return reduce(p, first, last, value_of<I>());
}
template <class I, class U, class T, class F>
inline T transform_reduce(const execution_policy&, I first, I last, U each, T init, F f) {
    for (; first != last; ++first) init = f(init, each(*first));
    return init;
}

// Scans read an element before its place is written: the result may be the input.
template <class I, class O, class F>
inline O inclusive_scan(const execution_policy&, I first, I last, O out, F f) {
    if (first == last) return out;
    value_of<I> sum = *first;
    for (*out = sum, ++first, ++out; first != last; ++first, ++out) sum = f(sum, *first), *out = sum;
    return out;
}
template <class I, class O> inline O inclusive_scan(const execution_policy& p, I first, I last, O out) {
    return inclusive_scan(p, first, last, out, std::plus<>());
}
template <class I, class O, class T, class F>
inline O exclusive_scan(const execution_policy&, I first, I last, O out, T init, F f) {
    for (; first != last; ++first, ++out) {
        const value_of<I> x = *first;
        *out = init, init = f(init, x);
    }
    return out;
}
template <class I, class O, class T>
inline O exclusive_scan(const execution_policy& p, I first, I last, O out, T init) {
    return exclusive_scan(p, first, last, out, init, std::plus<>());
}
template <class I, class O> inline O exclusive_scan(const execution_policy& p, I first, I last, O out) {
    return exclusive_scan(p, first, last, out, value_of<I>());
}

template <class I, class M, class O>
inline O gather(const execution_policy&, M map, M end, I input, O out) {
    for (; map != end; ++map, ++out) *out = input[*map];
    return out;
}
template <class I, class M, class O>
inline void scatter(const execution_policy&, I first, I last, M map, O out) {
    for (; first != last; ++first, ++map) out[*map] = *first;
}
template <class I, class T = value_of<I>, class S = T>
inline void sequence(const execution_policy&, I first, I last, T init = T(0), S step = S(1)) {
    for (ptrdiff_t k = 0; first != last; ++first, ++k) *first = init + step * (value_of<I>)k;
}

// ---- by key: what is done to neighbours with equal keys ------------------------------------------
template <class K, class V, class O>
inline O inclusive_scan_by_key(const execution_policy&, K key, K end, V value, O out) {
    if (key == end) return out;
    auto seen = *key;
    value_of<V> sum = *value;
    for (*out = sum, ++key, ++value, ++out; key != end; ++key, ++value, ++out) {
        const value_of<V> x = *value;
        sum = *key == seen ? value_of<V>(sum + x) : x, seen = *key, *out = sum;
    }
    return out;
}
template <class K, class V, class O, class T = value_of<V>>
inline O exclusive_scan_by_key(const execution_policy&, K key, K end, V value, O out, T init = T()) {
    if (key == end) return out;
    auto seen = *key;
    for (value_of<V> sum = init; key != end; ++key, ++value, ++out) {
        const value_of<V> x = *value;
        if (!(*key == seen)) sum = init;
        seen = *key, *out = sum, sum = sum + x;
    }
    return out;
}
template <class K, class V, class KO, class VO>
inline pair<KO, VO> reduce_by_key(const execution_policy&, K key, K end, V value, KO keys, VO values) {
    while (key != end) {
        const value_of<K> seen = *key;
        value_of<V> sum = *value;
        for (++key, ++value; key != end && *key == seen; ++key, ++value) sum = sum + *value;
        *keys = seen, *values = sum, ++keys, ++values;
    }
    return {keys, values};
}
template <class K, class V> inline pair<K, V> unique_by_key(const execution_policy&, K key, K end, V value) {
    K keys = key;
    V values = value;
    while (key != end) {
        const value_of<K> seen = *key;
        *keys = seen, *values = *value, ++keys, ++values;
        do ++key, ++value;
        while (key != end && *key == seen);
    }
    return {keys, values};
}
template <class K, class V, class C>
inline void stable_sort_by_key(const execution_policy&, K key, K end, V value, C less) {
    const ptrdiff_t n = end - key;  // the C++ library does not sort two ranges as one: insert, then merge runs
    auto* order = (ptrdiff_t*)malloc(sizeof(ptrdiff_t) * (n + 1));
    auto* keys = (value_of<K>*)malloc(sizeof(value_of<K>) * (n + 1));
    auto* values = (value_of<V>*)malloc(sizeof(value_of<V>) * (n + 1));
    for (ptrdiff_t i = 0; i < n; ++i) order[i] = i, keys[i] = key[i], values[i] = value[i];
    std::stable_sort(order, order + n, [&](ptrdiff_t a, ptrdiff_t b) { return less(keys[a], keys[b]); });
    for (ptrdiff_t i = 0; i < n; ++i) key[i] = keys[order[i]], value[i] = values[order[i]];
    free(order), free(keys), free(values);
}
template <class K, class V> inline void stable_sort_by_key(const execution_policy& p, K key, K end, V value) {
    stable_sort_by_key(p, key, end, value, std::less<>());
}
template <class K, class V, class... C>
inline void sort_by_key(const execution_policy& p, K key, K end, V value, C... less) {
    stable_sort_by_key(p, key, end, value, less...);
}

// ---- sets of sorted keys with values: ``one``, ``other`` and ``both`` say whose keys are kept ------
template <bool one, bool other, bool both, class A, class B, class V, class W, class K, class O>
inline pair<K, O> merged(A a, A a_end, B b, B b_end, V v, W w, K keys, O values) {
    auto keep = [&](bool wanted, auto key, auto value) {
        if (wanted) *keys = *key, *values = *value, ++keys, ++values;
    };
    while (a != a_end || b != b_end) {
        const bool first = b == b_end || (a != a_end && *a < *b);
        const bool second = a == a_end || (b != b_end && *b < *a);
        if (first) keep(one, a, v), ++a, ++v;
        else if (second) keep(other, b, w), ++b, ++w;
        else keep(both, a, v), ++a, ++v, ++b, ++w;
    }
    return {keys, values};
}
#define RGPU_SET(name, one, other, both)                                                                  \
    template <class A, class B, class V, class W, class K, class O>                                       \
    inline pair<K, O> name(const execution_policy&, A a, A a_end, B b, B b_end, V v, W w, K keys, O out) { \
        return merged<one, other, both>(a, a_end, b, b_end, v, w, keys, out);                             \
    }
RGPU_SET(set_difference_by_key, true, false, false)
RGPU_SET(set_symmetric_difference_by_key, true, true, false)
RGPU_SET(set_union_by_key, true, true, true)
#undef RGPU_SET
template <class A, class B, class V, class K, class O>
inline pair<K, O> set_intersection_by_key(const execution_policy&, A a, A a_end, B b, B b_end, V v, K keys, O out) {
    return merged<false, false, true>(a, a_end, b, b_end, v, v, keys, out);  // the second set's values are not read
}
}  // namespace thrust
