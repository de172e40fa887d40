/* Small arrays that nobody has any more, kept for the next results of their kind: making an array and letting it go costs
 * several times what the elements of a small result do. Only for results that are then written whole. Belongs to the process,
 * and so to one session; guarded by the interpreter's lock. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"

#define KINDS 8
#define SPARE 1024 /* arrays of a kind: a message frees as many */
#define KEPT (1 << 20) /* bytes of a kind */
#define LARGEST (64 << 10) /* bytes of one */
#define DIMS 3

typedef struct {
    int type, ndim, count;
    npy_intp shape[DIMS];
    PyArrayObject *arrays[SPARE];
} kind;

static kind kinds[KINDS];

static kind *kind_of(int ndim, const npy_intp *shape, int type)
{
    size_t hash = (size_t)(type * 5 + ndim);
    for (int i = 0; i < ndim; i++)
        hash = hash * 31 + (size_t)shape[i];
    return &kinds[(hash ^ hash >> 3 ^ hash >> 6) % KINDS];
}

static int is_of(const kind *k, int ndim, const npy_intp *shape, int type)
{
    int same = k->type == type && k->ndim == ndim;
    for (int i = 0; same && i < ndim; i++)
        same = k->shape[i] == shape[i];
    return same;
}

PyArrayObject *spare_take(int ndim, npy_intp *shape, int type)
{
    if (ndim <= DIMS) {
        kind *k = kind_of(ndim, shape, type);
        if (k->count && is_of(k, ndim, shape, type))
            return k->arrays[--k->count];
    }
    return (PyArrayObject *)PyArray_SimpleNew(ndim, shape, type);
}

/* Takes the reference to what a handle named. A kind that is freed takes the place of another one little by little. */
void spare_give(PyObject *entry)
{
    PyArrayObject *array = (PyArrayObject *)entry;
    int whole = NPY_ARRAY_OWNDATA | NPY_ARRAY_CARRAY;
    if (Py_REFCNT(entry) != 1 || !PyArray_CheckExact(entry) || PyArray_NDIM(array) > DIMS ||
        (PyArray_FLAGS(array) & (whole | NPY_ARRAY_WRITEBACKIFCOPY)) != whole || PyArray_BASE(array) ||
        PyArray_NBYTES(array) > LARGEST || type_of(array) == TYPES || !PyArray_ISNOTSWAPPED(array) ||
        ((PyArrayObject_fields *)array)->weakreflist) {
        Py_DECREF(entry);
        return;
    }
    int ndim = PyArray_NDIM(array), type = PyArray_TYPE(array);
    kind *k = kind_of(ndim, PyArray_DIMS(array), type);
    if (!k->count) {
        k->type = type;
        k->ndim = ndim;
        for (int i = 0; i < ndim; i++)
            k->shape[i] = PyArray_DIM(array, i);
    }
    int same = is_of(k, ndim, PyArray_DIMS(array), type);
    if (same && k->count < SPARE && (k->count + 1) * PyArray_NBYTES(array) <= KEPT) {
        k->arrays[k->count++] = array;
        return;
    }
    Py_DECREF(entry);
    if (!same) {
        PyArrayObject *other = k->arrays[--k->count];
        Py_DECREF((PyObject *)other);
    }
}
