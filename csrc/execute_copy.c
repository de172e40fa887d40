/* Copies of numbers from where they lie to where they lie otherwise: `x[...] = y` and `x.copy()` within one dtype.
 *
 * Bytes are moved, so there is nothing to prove. What is converted, overlaps or is no number is NumPy's. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"

#define DIMS 8
#define LARGEST (1 << 20) /* elements */
#define SCATTERED 8192    /* elements, where those read do not lie side by side: NumPy knows more about caches */
#define ALONE 20000       /* elements from which on other threads may run meanwhile */
#define RUN 32            /* bytes in a row from which on memcpy is faster than a loop */

/* Axes, the innermost first; those that follow each other in both arrays are one. */
typedef struct {
    int count;
    npy_intp n[DIMS], to[DIMS], from[DIMS];
} walk;

static int walk_of(const PyArrayObject *to, const PyArrayObject *from, walk *w)
{
    int more = PyArray_NDIM(to) - PyArray_NDIM(from);
    *w = (walk){.n = {1, 1}};
    if (more < 0)
        return 0;
    for (int i = PyArray_NDIM(to) - 1; i >= 0; i--) {
        npy_intp n = PyArray_DIM(to, i), theirs = i < more ? 1 : PyArray_DIM(from, i - more);
        npy_intp stride = PyArray_STRIDE(to, i), their_stride = theirs == 1 ? 0 : PyArray_STRIDE(from, i - more);
        int last = w->count - 1;
        if (theirs != n && theirs != 1)
            return 0;
        if (n == 1)
            continue;
        if (last >= 0 && stride == w->to[last] * w->n[last] && their_stride == w->from[last] * w->n[last])
            w->n[last] *= n;
        else {
            w->n[w->count] = n;
            w->to[w->count] = stride;
            w->from[w->count++] = their_stride;
        }
    }
    return 1;
}

#define MOVE(T)                                                                                                      \
    for (npy_intp j = 0; j < m; j++, to += to_row, from += from_row)                                                 \
        for (npy_intp i = 0; i < n; i++)                                                                             \
            *(T *)(to + i * to_one) = *(const T *)(from + i * from_one)

typedef struct {
    npy_uint64 halves[2];
} wide;

/* The two innermost axes. */
static void move(const walk *w, char *restrict to, const char *restrict from, npy_intp itemsize)
{
    npy_intp n = w->n[0], to_one = w->to[0], from_one = w->from[0], m = w->n[1], to_row = w->to[1], from_row = w->from[1];
    if (n * itemsize >= RUN && to_one == itemsize && from_one == itemsize) {
        for (npy_intp j = 0; j < m; j++, to += to_row, from += from_row)
            memcpy(to, from, (size_t)(n * itemsize));
        return;
    }
    switch (itemsize) {
    case 1: MOVE(npy_uint8); break;
    case 2: MOVE(npy_uint16); break;
    case 4: MOVE(npy_uint32); break;
    case 8: MOVE(npy_uint64); break;
    default: MOVE(wide);
    }
}

static void move_all(const walk *w, char *to, const char *from, npy_intp itemsize)
{
    npy_intp at[DIMS] = {0};
    for (;;) {
        move(w, to, from, itemsize);
        int i = 2;
        for (; i < w->count; i++) {
            to += w->to[i];
            from += w->from[i];
            if (++at[i] < w->n[i])
                break;
            to -= w->to[i] * w->n[i];
            from -= w->from[i] * w->n[i];
            at[i] = 0;
        }
        if (i >= w->count)
            return;
    }
}

/* Whether it is done; nothing has happened otherwise. */
static int copy(PyArrayObject *to, PyArrayObject *from)
{
    npy_intp size = PyArray_SIZE(to), itemsize = PyArray_ITEMSIZE(to);
    walk w;
    if (!size || PyArray_NDIM(to) > DIMS || itemsize > 16 || !walk_of(to, from, &w))
        return 0;
    if (size > (w.from[0] == itemsize || !w.from[0] ? LARGEST : SCATTERED))
        return 0;
    if (size >= ALONE) {
        Py_BEGIN_ALLOW_THREADS;
        move_all(&w, PyArray_DATA(to), PyArray_DATA(from), itemsize);
        Py_END_ALLOW_THREADS;
    } else
        move_all(&w, PyArray_DATA(to), PyArray_DATA(from), itemsize);
    return 1;
}

static int is_numeric(const PyArrayObject *array)
{
    return (PyArray_ISNUMBER(array) || PyArray_ISBOOL(array)) && lies_plainly(array);
}

/* array[...] = value: None. */
PyObject *call_assign(Loop *loop, uint64_t fn, reader *r)
{
    uint64_t count, tag;
    PyArrayObject *to, *from;
    (void)fn;
    if (!take_list(r, &count) || count != 3 || !(to = take_array(loop, r)) || !take_list(r, &count) || count != 1 ||
        !take_natural(r, &tag) || tag != ELLIPSIS || !(from = take_array(loop, r)) || r->at == r->end || *r->at != 0x80)
        return NULL;
    if (!is_numeric(to) || !is_numeric(from) || PyArray_TYPE(to) != PyArray_TYPE(from) || !PyArray_ISWRITEABLE(to) ||
        !PyArray_SIZE(from) || to == from || disturbs(to, from) || !copy(to, from))
        return NULL;
    Py_RETURN_NONE;
}

/* A copy of an array in a dtype, which is its own: a new array in C order. */
PyObject *call_copy(Loop *loop, uint64_t fn, reader *r)
{
    uint64_t count, tag;
    const char *text;
    size_t length;
    PyArrayObject *from;
    (void)fn;
    if (!take_list(r, &count) || count != 2 || !(from = take_array(loop, r)) || !take_list(r, &count) || count != 2 ||
        !take_natural(r, &tag) || tag != DTYPE || !take_text(r, &text, &length) || r->at == r->end || *r->at != 0x80 ||
        !is_numeric(from) || PyArray_DESCR(from) != dtype_of(loop, text, length) || PyArray_SIZE(from) > LARGEST)
        return NULL;
    PyArrayObject *to = spare_take(PyArray_NDIM(from), PyArray_DIMS(from), PyArray_TYPE(from));
    if (to && !copy(to, from)) {
        Py_DECREF((PyObject *)to);
        to = NULL;
    }
    return (PyObject *)to;
}
