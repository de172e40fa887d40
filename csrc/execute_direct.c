/* Element-wise functions without what stands around them: NumPy's own inner loops, called on arrays of one dtype.
 *
 * A small `a + b` is mostly the search for its loop. Here it is found once for each function and dtype, and not trusted
 * before the same calls through NumPy have given the same bytes a few times. Everything that is not plain (casts, other
 * byte orders, memory that overlaps, numbers that a dtype does not hold) is NumPy's: 0 is said, and nothing has happened. */
#include "execute.h"

#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#define PY_UFUNC_UNIQUE_SYMBOL rgpu_execute_ufunc
#include "execute_numpy.h"
#include <numpy/ufuncobject.h>

#define DIMS 6
#define PROOFS 3       /* calls that must have given the same bytes */
#define ALONE 20000    /* elements from which on other threads may run meanwhile */
#define PROVABLE 4096  /* elements of a call that may be one of those */

enum { BOOL, INT32, INT64, FLOAT32, FLOAT64, TYPES };
static const int numbers[TYPES] = {NPY_BOOL, NPY_INT32, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64};

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    char sought, proofs; /* proofs < 0: NumPy alone */
    int out;             /* the result's type */
} way;

struct direct {
    way (*ways)[TYPES];
    size_t count;
};

struct direct *direct_new(size_t count)
{
    struct direct *d = PyMem_Calloc(1, sizeof *d);
    if (d && !(d->ways = PyMem_Calloc(count + 1, sizeof *d->ways))) {
        PyMem_Free(d);
        return NULL;
    }
    if (d)
        d->count = count;
    return d;
}

void direct_free(struct direct *d)
{
    if (d)
        PyMem_Free(d->ways);
    PyMem_Free(d);
}

static int type_of(const PyArrayObject *array)
{
    int number = PyArray_TYPE(array);
    for (int t = 0; t < TYPES; t++)
        if (numbers[t] == number)
            return t;
    return TYPES;
}

static way *way_of(struct direct *d, size_t fn, PyObject *function, int type, int nin)
{
    way *w = &d->ways[fn][type];
    if (!w->sought) {
        const PyUFuncObject *ufunc = (const PyUFuncObject *)function;
        w->sought = 1;
        w->proofs = -1;
        for (int i = 0; i < ufunc->ntypes && ufunc->nin == nin && ufunc->nout == 1 && !ufunc->core_enabled; i++) {
            const char *types = ufunc->types + i * ufunc->nargs;
            int same = types[0] == numbers[type] && (nin == 1 || types[1] == numbers[type]);
            if (!same || !ufunc->functions[i])
                continue;
            w->loop = ufunc->functions[i];
            w->data = ufunc->data ? (void *)ufunc->data[i] : NULL;
            w->out = types[nin];
            w->proofs = 0;
            break;
        }
        int known = 0;
        for (int t = 0; t < TYPES; t++)
            known |= w->out == numbers[t];
        if (!known)
            w->proofs = -1;
    }
    return w->proofs < 0 ? NULL : w;
}

/* ---- operands ------------------------------------------------------------------------------ */

typedef union {
    npy_bool b;
    npy_int32 i;
    npy_int64 l;
    float f;
    double d;
} number;

/* A Python number in the arrays' dtype, as NumPy takes it there; 0 where it is not exactly as simple. */
static int number_as(PyObject *x, int type, number *to)
{
    if (PyFloat_CheckExact(x)) {
        double value = PyFloat_AsDouble(x);
        if (type == FLOAT32)
            to->f = (float)value;
        else if (type == FLOAT64)
            to->d = value;
        else
            return 0;
        return 1;
    }
    if (!PyLong_CheckExact(x))
        return 0;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (overflow)
        return 0;
    switch (type) {
    case INT32: to->i = (npy_int32)value; return value >= INT32_MIN && value <= INT32_MAX;
    case INT64: to->l = value; return 1;
    case FLOAT32: to->f = (float)value; return value >= -(1 << 24) && value <= 1 << 24;
    case FLOAT64: to->d = (double)value; return value >= -(1LL << 53) && value <= 1LL << 53;
    default: return 0;
    }
}

typedef struct {
    int ndim, nargs;
    npy_intp shape[DIMS], strides[3][DIMS];
    char *data[3];
    number numbers[2];
} call;

static int is_plain(const PyArrayObject *array, int number_)
{
    return PyArray_TYPE(array) == number_ && PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array) &&
           PyArray_NDIM(array) <= DIMS;
}

static int broadcast(call *c, PyArrayObject *const *arrays, int nin)
{
    c->ndim = 0;
    for (int k = 0; k < nin; k++)
        if (arrays[k] && PyArray_NDIM(arrays[k]) > c->ndim)
            c->ndim = PyArray_NDIM(arrays[k]);
    for (int i = 0; i < c->ndim; i++)
        c->shape[i] = 1;
    for (int k = 0; k < nin; k++)
        for (int i = 0; arrays[k] && i < PyArray_NDIM(arrays[k]); i++) {
            npy_intp extent = PyArray_DIM(arrays[k], i), *whole = &c->shape[c->ndim - PyArray_NDIM(arrays[k]) + i];
            if (extent != *whole && extent != 1 && *whole != 1)
                return 0;
            if (*whole == 1)
                *whole = extent;
        }
    for (int i = 0; i < c->ndim; i++)
        if (!c->shape[i])
            return 0;
    return 1;
}

static void place(call *c, int k, const PyArrayObject *array)
{
    int before = c->ndim - PyArray_NDIM(array);
    c->data[k] = PyArray_DATA((PyArrayObject *)array);
    for (int i = 0; i < c->ndim; i++)
        c->strides[k][i] = i < before || PyArray_DIM(array, i - before) == 1 ? 0 : PyArray_STRIDE(array, i - before);
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* Dimensions that lie behind each other in all operands become one. */
static void join(call *c)
{
    int last = 0;
    for (int i = 1; i < c->ndim; i++) {
        int joined = c->shape[i] == 1 || c->shape[last] == 1;
        if (!joined) {
            joined = 1;
            for (int k = 0; k < c->nargs; k++)
                joined &= c->strides[k][last] == c->strides[k][i] * c->shape[i];
            if (joined)
                c->shape[last] *= c->shape[i];
        } else if (c->shape[last] == 1)
            c->shape[last] = c->shape[i];
        else
            continue; /* an extent of 1 behind others says nothing */
        if (!joined)
            c->shape[++last] = c->shape[i];
        for (int k = 0; k < c->nargs; k++)
            c->strides[k][last] = c->strides[k][i];
    }
    if (c->ndim)
        c->ndim = last + 1;
}

static void run(const way *w, call *c)
{
    npy_intp at[DIMS] = {0}, inner[3], n = c->ndim ? c->shape[c->ndim - 1] : 1;
    for (int k = 0; k < c->nargs; k++)
        inner[k] = c->ndim ? c->strides[k][c->ndim - 1] : 0;
    for (;;) {
        char *data[3];
        npy_intp count = n;
        memcpy(data, c->data, sizeof data);
        w->loop(data, &count, inner, w->data);
        int i = c->ndim - 2;
        for (; i >= 0; i--) {
            for (int k = 0; k < c->nargs; k++)
                c->data[k] += c->strides[k][i];
            if (++at[i] < c->shape[i])
                break;
            for (int k = 0; k < c->nargs; k++)
                c->data[k] -= c->strides[k][i] * c->shape[i];
            at[i] = 0;
        }
        if (i < 0)
            return;
    }
}

/* The bytes that an array's elements lie in. */
static void extent_of(const PyArrayObject *array, uintptr_t *low, uintptr_t *high)
{
    *low = *high = (uintptr_t)PyArray_DATA((PyArrayObject *)array);
    for (int i = 0; i < PyArray_NDIM(array); i++) {
        npy_intp reach = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
        *(reach < 0 ? low : high) += (uintptr_t)reach;
    }
    *high += (uintptr_t)PyArray_ITEMSIZE(array);
}

/* Whether writing one while the other is read could change what is read: they overlap, and are not the same. */
static int disturbs(const PyArrayObject *into, const PyArrayObject *from)
{
    uintptr_t low, high, from_low, from_high;
    if (into == from)
        return 0;
    extent_of(into, &low, &high);
    extent_of(from, &from_low, &from_high);
    return low < from_high && from_low < high;
}

/* Whether NumPy says the same: its result is compared with ours, byte for byte. */
static int prove(way *w, PyObject *function, PyObject *a, PyObject *b, PyArrayObject *ours)
{
    PyObject *theirs = PyObject_CallFunctionObjArgs(function, a, b, NULL);
    if (theirs && !PyArray_Check(theirs)) {
        PyObject *array = PyArray_FromScalar(theirs, NULL);
        Py_DECREF(theirs);
        theirs = array;
    }
    if (theirs && PyArray_CheckExact(theirs) && !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)theirs)) {
        PyObject *array = PyArray_NewCopy((PyArrayObject *)theirs, NPY_CORDER);
        Py_DECREF(theirs);
        theirs = array;
    }
    PyArrayObject *found = (PyArrayObject *)theirs;
    int same = found && PyArray_CheckExact(theirs) && PyArray_TYPE(found) == PyArray_TYPE(ours) &&
               PyArray_NDIM(found) == PyArray_NDIM(ours) &&
               PyArray_CompareLists(PyArray_DIMS(found), PyArray_DIMS(ours), PyArray_NDIM(ours));
    same = same && !memcmp(PyArray_DATA(found), PyArray_DATA(ours), (size_t)PyArray_NBYTES(ours));
    w->proofs = same ? (char)(w->proofs + 1) : -1;
    Py_XDECREF(theirs);
    return same;
}

/* function(a[, b]), or with `into` the same into it. The result is a new array in C order, or None; NULL: it is
 * NumPy's to compute, or an exception. */
PyObject *direct_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into)
{
    PyObject *given[2] = {a, b};
    PyArrayObject *arrays[2] = {NULL, NULL}, *out = (PyArrayObject *)into;
    int nin = b ? 2 : 1, type = TYPES;
    for (int k = 0; k < nin; k++)
        if (PyArray_CheckExact(given[k])) {
            arrays[k] = (PyArrayObject *)given[k];
            type = type == TYPES ? type_of(arrays[k]) : type;
        }
    if (type == TYPES || fn >= d->count)
        return NULL;
    way *w = way_of(d, fn, function, type, nin);
    call c = {.nargs = nin + 1};
    if (!w || (into && w->proofs < PROOFS))
        return NULL;
    for (int k = 0; k < nin; k++)
        if (arrays[k] ? !is_plain(arrays[k], numbers[type]) : !number_as(given[k], type, &c.numbers[k]))
            return NULL;
    if (!broadcast(&c, arrays, nin))
        return NULL;
    if (into) {
        if (w->out != numbers[type] || PyArray_NDIM(out) != c.ndim || !PyArray_ISWRITEABLE(out) ||
            !PyArray_CompareLists(PyArray_DIMS(out), c.shape, c.ndim) || (arrays[1] && disturbs(out, arrays[1])))
            return NULL;
    } else
        out = (PyArrayObject *)PyArray_SimpleNew(c.ndim, c.shape, w->out);
    if (!out)
        return NULL;
    npy_intp size = PyArray_SIZE(out);
    if (!into && w->proofs < PROOFS && size > PROVABLE) {
        Py_DECREF((PyObject *)out);
        return NULL;
    }
    for (int k = 0; k < nin; k++)
        if (arrays[k])
            place(&c, k, arrays[k]);
        else
            c.data[k] = (char *)&c.numbers[k];
    place(&c, nin, out);
    join(&c);
    if (size >= ALONE) {
        Py_BEGIN_ALLOW_THREADS;
        run(w, &c);
        Py_END_ALLOW_THREADS;
    } else
        run(w, &c);
    if (into)
        Py_RETURN_NONE;
    if (w->proofs < PROOFS && !prove(w, function, a, b, out)) {
        Py_DECREF((PyObject *)out);
        PyErr_Clear(); /* NumPy will say it again */
        return NULL;
    }
    return (PyObject *)out;
}
