/* Sums, products, extrema and means over axes of arrays in C order, by NumPy's own inner loops.
 *
 * A reduction's bits depend on the order of its additions, which is NumPy's own affair: it is followed here as far as it
 * is known (axes in C order, the last one at once), and believed for a layout (function, dtype, shape and axes) only
 * when it has given the same bytes as NumPy on random and on odd data of that layout, many times. The user's data, which
 * may be zeros, proves nothing. All else is NumPy's: other orders, large arrays, layouts that are seen seldom. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"
#include <math.h>

#define DIMS 8
#define LARGEST 100000 /* elements */
#define ALONE 20000    /* elements from which on other threads may run meanwhile */
#define LAYOUTS 256
#define SIGHTS 4  /* calls of a layout before it is worth a proof */
#define ROUNDS 12 /* proofs, one a call; twice as many where each compares but a few elements */
#define WIDE 100  /* elements of a row from which on NumPy's loop is as fast as ours */
#define PERIOD 4093 /* random elements, which are repeated; a prime: no column of a matrix is the same throughout */
#define FIRST -1

typedef struct {
    uint64_t fn;
    int32_t type, ndim;
    uint64_t reduced; /* axes, as bits */
    npy_intp shape[DIMS];
} layout; /* without gaps: it is compared as bytes */

typedef struct {
    layout of;
    int seen; /* calls and proofs; < 0: NumPy alone */
    inner_loop loop, divide;
    int start, few; /* 0, 1, FIRST; whether there are few results */
    void (*rows)(const char *, npy_intp, npy_intp, char *, npy_intp); /* sums of rows; NULL: by the loop */
} known;

struct reduces {
    PyObject *list, **ufuncs;
    known layouts[LAYOUTS];
    uint64_t random;
};

/* By function: (ufunc that reduces, ufunc that divides by the count or nothing), or what is no reduction's. */
struct reduces *reduces_new(PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    struct reduces *all = PyMem_Calloc(1, sizeof *all);
    if (!all || !(all->ufuncs = PyMem_Calloc((size_t)count + 1, sizeof *all->ufuncs))) {
        PyMem_Free(all);
        PyErr_NoMemory();
        return NULL;
    }
    Py_INCREF(list);
    all->list = list;
    all->random = 88172645463325252u;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *ufuncs = PyList_GetItem(list, i);
        all->ufuncs[i] = PyTuple_Check(ufuncs) ? ufuncs : NULL;
    }
    return all;
}

void reduces_free(struct reduces *all)
{
    if (!all)
        return;
    Py_DECREF(all->list);
    PyMem_Free(all->ufuncs);
    PyMem_Free(all);
}

/* ---- one reduction ------------------------------------------------------------------------- */

/* Neighbouring axes that are both kept or both reduced are one; those of one element are none. */
typedef struct {
    int count;
    npy_intp n[DIMS], from[DIMS], to[DIMS]; /* extents, strides of the array and of the result: 0 if reduced */
    npy_intp kept;                          /* elements of the result */
} plan;

static int plan_of(const layout *of, npy_intp itemsize, plan *p)
{
    npy_intp from = itemsize, to = itemsize;
    int reduces = 0;
    p->count = 0;
    for (int i = of->ndim - 1; i >= 0; i--) {
        npy_intp n = of->shape[i];
        int reduced = of->reduced >> i & 1, last = p->count - 1;
        if (n == 1)
            continue;
        if (last >= 0 && (p->to[last] == 0) == reduced)
            p->n[last] *= n;
        else {
            p->n[p->count] = n;
            p->from[p->count] = from;
            p->to[p->count++] = reduced ? 0 : to;
        }
        from *= n;
        to *= reduced ? 1 : n;
        reduces |= reduced;
    }
    p->kept = to / itemsize;
    return reduces;
}

/* to[0 .. width) += each of n rows, in order; a few columns at a time stay in registers. */
#define ADD_ROWS(NAME, T)                                                                                            \
    typedef T NAME##_some __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));                           \
    static void NAME(const char *from, npy_intp n, npy_intp stride, char *to, npy_intp width)                        \
    {                                                                                                                \
        char *end = to + width * (npy_intp)sizeof(T);                                                                \
        for (; end - to >= 64; to += 64, from += 64) {                                                               \
            NAME##_some *sums = (NAME##_some *)to, a = sums[0], b = sums[1], c = sums[2], d = sums[3];               \
            for (npy_intp i = 0; i < n; i++) {                                                                       \
                const NAME##_some *row = (const NAME##_some *)(from + i * stride);                                   \
                a += row[0], b += row[1], c += row[2], d += row[3];                                                  \
            }                                                                                                        \
            sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;                                                      \
        }                                                                                                            \
        for (; end - to >= 16; to += 16, from += 16) {                                                               \
            NAME##_some sum = *(NAME##_some *)to;                                                                    \
            for (npy_intp i = 0; i < n; i++)                                                                         \
                sum += *(const NAME##_some *)(from + i * stride);                                                    \
            *(NAME##_some *)to = sum;                                                                                \
        }                                                                                                            \
        for (; to < end; to += sizeof(T), from += sizeof(T)) {                                                       \
            T sum = *(T *)to;                                                                                        \
            for (npy_intp i = 0; i < n; i++)                                                                         \
                sum += *(const T *)(from + i * stride);                                                              \
            *(T *)to = sum;                                                                                          \
        }                                                                                                            \
    }
ADD_ROWS(add_floats, float)
ADD_ROWS(add_doubles, double)

/* The innermost groups at once, the others one by one; a group's 0 is the innermost. */
static void reduce(const known *k, const plan *p, npy_intp itemsize, char *from, char *to)
{
    npy_intp at[DIMS] = {0}, strides[3] = {p->to[0], p->from[0], p->to[0]};
    int repeated = 0; /* reduced groups that are beyond their first element */
    int by_rows = k->rows && p->to[0] && p->n[0] < WIDE;
    for (;;) {
        char *data[3] = {to, from, to};
        npy_intp n = p->n[0];
        if (k->start == FIRST && !repeated) {
            npy_intp started = p->to[0] ? n : 1;
            memcpy(to, from, (size_t)(started * itemsize));
            data[1] += started * itemsize;
            n -= started;
        }
        if (by_rows)
            k->rows(from, p->n[1], p->from[1], to, n);
        else if (n)
            k->loop.call(data, &n, strides, k->loop.data);
        int i = 1 + by_rows;
        for (; i < p->count; i++) {
            from += p->from[i];
            to += p->to[i];
            repeated += !p->to[i] && !at[i];
            if (++at[i] < p->n[i])
                break;
            from -= p->from[i] * p->n[i];
            to -= p->to[i] * p->n[i];
            repeated -= !p->to[i];
            at[i] = 0;
        }
        if (i == p->count)
            return;
    }
}

typedef union {
    npy_bool b;
    npy_int32 i;
    npy_int64 l;
    float f;
    double d;
} number;

static number number_of(int type, npy_intp value)
{
    number n;
    switch (type) {
    case NPY_BOOL: n.b = value != 0; break;
    case NPY_INT32: n.i = (npy_int32)value; break;
    case NPY_INT64: n.l = (npy_int64)value; break;
    case NPY_FLOAT32: n.f = (float)value; break;
    default: n.d = (double)value;
    }
    return n;
}

static PyArrayObject *reduced(const known *k, PyArrayObject *array, int keepdims)
{
    const layout *of = &k->of;
    npy_intp shape[DIMS], itemsize = PyArray_ITEMSIZE(array), steps[3] = {itemsize, 0, itemsize};
    int ndim = 0;
    plan p;
    for (int i = 0; i < of->ndim; i++)
        if (!(of->reduced >> i & 1))
            shape[ndim++] = of->shape[i];
        else if (keepdims)
            shape[ndim++] = 1;
    if (!plan_of(of, itemsize, &p))
        return NULL;
    PyArrayObject *out = spare_take(ndim, shape, of->type);
    if (!out)
        return NULL;
    char *from = PyArray_DATA(array), *to = PyArray_DATA(out);
    npy_intp size = PyArray_SIZE(array);
    if (k->start == 1) {
        number one = number_of(of->type, 1);
        for (npy_intp i = 0; i < p.kept; i++)
            memcpy(to + i * itemsize, &one, (size_t)itemsize);
    } else
        memset(to, 0, (size_t)(p.kept * itemsize)); /* or what the first elements replace */
    if (size >= ALONE) {
        Py_BEGIN_ALLOW_THREADS;
        reduce(k, &p, itemsize, from, to);
        Py_END_ALLOW_THREADS;
    } else
        reduce(k, &p, itemsize, from, to);
    if (k->divide.call) {
        number count = number_of(of->type, size / p.kept);
        char *data[3] = {to, (char *)&count, to};
        k->divide.call(data, &p.kept, steps, k->divide.data);
    }
    return out;
}

/* ---- proofs -------------------------------------------------------------------------------- */

static uint64_t next(struct reduces *all)
{
    all->random ^= all->random << 13;
    all->random ^= all->random >> 7;
    all->random ^= all->random << 17;
    return all->random * 2685821657736338717u;
}

/* A number whose place among others can be seen in what they are reduced to: by rounding, by a sign. */
static double odd_double(uint64_t x, int round)
{
    static const double odd[] = {0., -0., NAN, -NAN, INFINITY, -INFINITY, 1., -1.};
    double value = (double)(int64_t)x / 9223372036854775808.; /* -1 .. 1 */
    switch (round % 4) {
    case 0: return value;
    case 1: return value * (double)(1u << (x & 31));
    case 2: return value + 2;
    default: x >>= 40; return odd[round % 12 == 3 ? x % 2 : round % 12 == 7 ? 2 + x % 2 : x % 8];
    }
}

static void fill(struct reduces *all, PyArrayObject *array, int round)
{
    void *data = PyArray_DATA(array);
    npy_intp all_of_it = PyArray_SIZE(array), n = all_of_it < PERIOD ? all_of_it : PERIOD;
    for (npy_intp i = 0; i < n; i++) {
        uint64_t x = next(all);
        switch (PyArray_TYPE(array)) {
        case NPY_BOOL: ((npy_bool *)data)[i] = !(x % (round & 2 ? 2 : 64)) ^ (round & 1); break;
        case NPY_INT32: ((npy_int32 *)data)[i] = (npy_int32)(x >> 32); break;
        case NPY_INT64: ((npy_int64 *)data)[i] = (npy_int64)x; break;
        case NPY_FLOAT32: ((float *)data)[i] = (float)odd_double(x, round); break;
        default: ((double *)data)[i] = odd_double(x, round);
        }
    }
    npy_intp itemsize = PyArray_ITEMSIZE(array);
    for (npy_intp there = n, more; there < all_of_it; there += more) {
        more = all_of_it - there < n ? all_of_it - there : n;
        memcpy((char *)data + there * itemsize, data, (size_t)(more * itemsize));
    }
}

/* What NumPy says for such an array. */
static PyObject *reduced_by(PyObject *function, const layout *of, PyArrayObject *array)
{
    PyObject *axes = PyList_New(0);
    for (int i = 0; axes && i < of->ndim; i++) {
        PyObject *axis = of->reduced >> i & 1 ? PyLong_FromLong(i) : NULL;
        if (axis && PyList_Append(axes, axis))
            Py_CLEAR(axes);
        Py_XDECREF(axis);
    }
    PyObject *args = Py_BuildValue("(O)", (PyObject *)array);
    PyObject *named = axes ? Py_BuildValue("{s:N}", "axis", PyList_AsTuple(axes)) : NULL;
    PyObject *found = args && named ? PyObject_Call(function, args, named) : NULL;
    Py_XDECREF(axes);
    Py_XDECREF(args);
    Py_XDECREF(named);
    return found;
}

static void prove(struct reduces *all, known *k, PyObject *function)
{
    PyArrayObject *array = (PyArrayObject *)PyArray_SimpleNew(k->of.ndim, k->of.shape, k->of.type);
    if (!array) {
        PyErr_Clear();
        return;
    }
    fill(all, array, k->seen - SIGHTS);
    PyArrayObject *ours = reduced(k, array, 0);
    if (ours && same_bytes(ours, reduced_by(function, &k->of, array)))
        k->seen++;
    else if (k->rows) { /* then as NumPy adds them, and from the beginning */
        k->rows = NULL;
        k->seen = SIGHTS;
    } else
        k->seen = -1;
    k->few = ours && PyArray_SIZE(ours) < 16;
    PyErr_Clear();
    Py_XDECREF((PyObject *)ours);
    Py_DECREF((PyObject *)array);
}

/* ---- what is known ------------------------------------------------------------------------- */

/* What a reduction starts from: 0, 1, or its first element. */
static int start_of(PyObject *ufunc)
{
    PyObject *identity = PyObject_GetAttrString(ufunc, "identity");
    int start = identity && PyLong_Check(identity) ? PyObject_IsTrue(identity) : FIRST;
    Py_XDECREF(identity);
    PyErr_Clear();
    return start;
}

/* The place of a layout, which may have been another's; NULL where there is no loop for it. */
static known *known_as(struct reduces *all, const layout *of)
{
    uint64_t words[sizeof *of / 8], hash = 14695981039346656037u;
    memcpy(words, of, sizeof words);
    for (size_t i = 0; i < sizeof words / 8; i++)
        hash = (hash ^ words[i] ^ hash >> 29) * 1099511628211u;
    known *k = &all->layouts[(hash ^ hash >> 32) % LAYOUTS];
    if (memcmp(&k->of, of, sizeof *of)) {
        PyObject *ufuncs = all->ufuncs[of->fn], *ufunc = PyTuple_GetItem(ufuncs, 0);
        *k = (known){.of = *of, .start = start_of(ufunc)};
        if (!find_loop(ufunc, of->type, &k->loop) ||
            (PyTuple_Size(ufuncs) > 1 && !find_loop(PyTuple_GetItem(ufuncs, 1), of->type, &k->divide)))
            k->seen = -1;
        if (!strcmp(((const PyUFuncObject *)ufunc)->name, "add"))
            k->rows = of->type == NPY_FLOAT32 ? add_floats : of->type == NPY_FLOAT64 ? add_doubles : NULL;
    }
    return k->seen < 0 ? NULL : k;
}

/* ---- the call ------------------------------------------------------------------------------ */

static int take_axis(reader *r, layout *of)
{
    uint64_t count, tag;
    int64_t axis;
    int single = r->at < r->end && (*r->at & 0xf0) != 0x90;
    if (single)
        count = 2;
    else if (!take_list(r, &count) || !take_natural(r, &tag) || tag != TUPLE)
        return 0;
    for (uint64_t i = 1; i < count; i++) {
        if (!take_integer(r, &axis) || axis < -of->ndim || axis >= of->ndim)
            return 0;
        uint64_t bit = 1u << (axis < 0 ? axis + of->ndim : axis);
        if (of->reduced & bit)
            return 0;
        of->reduced |= bit;
    }
    return 1;
}

/* (array), {axis, keepdims}; 0: there is more to it. */
static int take_options(reader *r, layout *of, int *keepdims)
{
    if (r->at == r->end || (*r->at & 0xf0) != 0x80)
        return 0;
    int all = 1, given = 0;
    for (unsigned count = *r->at++ & 15; count; count--) {
        const char *text;
        size_t size;
        if (!take_text(r, &text, &size) || r->at == r->end)
            return 0;
        int which = size == 4 ? 1 : 2, none = *r->at == 0xc0, no = *r->at == 0xc2, yes = *r->at == 0xc3;
        if (given & which)
            return 0;
        given |= which;
        if (size == 8 && !memcmp(text, "keepdims", 8) && (no || yes))
            *keepdims = yes;
        else if (size != 4 || memcmp(text, "axis", 4))
            return 0;
        else if (!none) {
            all = 0;
            if (!take_axis(r, of))
                return 0;
            continue;
        }
        r->at++;
    }
    if (all)
        of->reduced = (1u << of->ndim) - 1;
    return of->reduced != 0;
}

/* A new array; NULL: NumPy's, or an exception. */
PyObject *call_reduce(Loop *loop, uint64_t fn, reader *r)
{
    uint64_t count;
    PyArrayObject *array;
    if (!take_list(r, &count) || count != 1 || !(array = take_array(loop, r)))
        return NULL;
    int type = PyArray_TYPE(array), ndim = PyArray_NDIM(array), keepdims = 0;
    npy_intp size = PyArray_SIZE(array);
    if ((type != NPY_FLOAT32 && type != NPY_FLOAT64 && type != NPY_BOOL && type != NPY_INT32 && type != NPY_INT64) ||
        !lies_plainly(array) || !PyArray_IS_C_CONTIGUOUS(array) || ndim < 1 || ndim > DIMS || size < 2 || size > LARGEST)
        return NULL;
    layout of = {.fn = fn, .type = type, .ndim = ndim};
    memcpy(of.shape, PyArray_DIMS(array), (size_t)ndim * sizeof *of.shape);
    if (!take_options(r, &of, &keepdims))
        return NULL;
    known *k = known_as(loop->reduces, &of);
    if (!k)
        return NULL;
    if (k->seen < SIGHTS)
        k->seen++;
    else if (k->seen < SIGHTS + (k->few ? 2 : 1) * ROUNDS)
        prove(loop->reduces, k, loop->functions[fn]);
    else
        return (PyObject *)reduced(k, array, keepdims);
    return NULL;
}
