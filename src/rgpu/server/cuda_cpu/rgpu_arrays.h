// CuPy's classes that the bodies of element-wise kernels see: CArray (an array parameter) and CIndexer (the loop).
#pragma once

template <class T, int dimensions, bool contiguous = false, bool narrow = false>
class CArray {
public:
    static const int ndim = dimensions;
    static const bool _c_contiguous = contiguous;
    using value_type = T;

    CArray(T* data, const ptrdiff_t* shape, const ptrdiff_t* strides) : data_(data), size_(1) {
        for (int d = 0; d < ndim; ++d) size_ *= shape_[d] = shape[d], strides_[d] = strides[d];
    }
    ptrdiff_t size() const { return size_; }
    const ptrdiff_t* shape() const { return shape_; }
    const ptrdiff_t* strides() const { return strides_; }
    T* data() const { return data_; }
    T& operator[](ptrdiff_t i) { return *at(i); }
    const T& operator[](ptrdiff_t i) const { return *at(i); }
    template <class I> T& operator[](const I (&index)[dimensions ? dimensions : 1]) { return *place(index); }
    template <class I> const T& operator[](const I (&index)[dimensions ? dimensions : 1]) const { return *place(index); }
    T* begin() const { return data_; }  // contiguous arrays only
    T* end() const { return data_ + size_; }

private:
    T* data_;
    ptrdiff_t size_, shape_[dimensions ? dimensions : 1], strides_[dimensions ? dimensions : 1];

    T* at(ptrdiff_t i) const {
        if (contiguous) return data_ + i;
        char* p = (char*)data_;
        for (int d = ndim; --d > 0;) p += strides_[d] * (i % shape_[d]), i /= shape_[d];
        if (ndim > 0) p += strides_[0] * i;
        return (T*)p;
    }
    template <class I> T* place(const I* index) const {
        char* p = (char*)data_;
        for (int d = 0; d < ndim; ++d) p += strides_[d] * (ptrdiff_t)index[d];
        return (T*)p;
    }
};

template <int dimensions, bool narrow = false>
class CIndexer {
public:
    static const int ndim = dimensions;
    explicit CIndexer(const ptrdiff_t* shape) : size_(1) {
        for (int d = 0; d < ndim; ++d) size_ *= shape_[d] = shape[d], index_[d] = 0;
    }
    ptrdiff_t size() const { return size_; }
    const ptrdiff_t (&get() const)[dimensions ? dimensions : 1] { return index_; }
    const ptrdiff_t* shape() const { return shape_; }
    void set(ptrdiff_t i) {
        for (int d = ndim; --d > 0;) index_[d] = i % shape_[d], i /= shape_[d];
        if (ndim > 0) index_[0] = i;
    }

private:
    ptrdiff_t size_, shape_[dimensions ? dimensions : 1], index_[dimensions ? dimensions : 1];
};

namespace rgpu {
template <class T>
inline T read(const char* p) {
    alignas(T) char place[sizeof(T)];
    memcpy(place, p, sizeof(T));
    return *reinterpret_cast<T*>(place);
}

// The position of a loop over `dimensions` axes; the innermost axis is walked by the caller.
template <int dimensions>
struct Walk {
    const ptrdiff_t* shape;
    ptrdiff_t index[dimensions];
    Walk(const ptrdiff_t* shape, ptrdiff_t i) : shape(shape) {
        for (int d = dimensions; --d > 0;) index[d] = i % shape[d], i /= shape[d];
        index[0] = i;
    }
    ptrdiff_t left() const { return shape[dimensions - 1] - index[dimensions - 1]; }
    ptrdiff_t offset(const ptrdiff_t* strides) const {
        ptrdiff_t sum = 0;
        for (int d = 0; d < dimensions; ++d) sum += index[d] * strides[d];
        return sum;
    }
    void row() {  // to the beginning of the next row
        index[dimensions - 1] = 0;
        for (int d = dimensions - 1; d-- > 0;) {
            if (++index[d] < shape[d]) return;
            index[d] = 0;
        }
    }
};
}  // namespace rgpu
