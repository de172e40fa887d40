/* Element-wise functions without what stands around them: NumPy's own inner loops, called on arrays of one dtype.
 *
 * A small `a + b` is mostly the search for its loop. Here it is found once for each function and dtype, and not trusted
 * before the same calls through NumPy have given the same bytes a few times. Everything that is not plain (casts, other
 * byte orders, memory that overlaps, numbers that a dtype does not hold) is NumPy's: 0 is said, and nothing has happened. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"

#define DIMS 6
#define PROOFS 3       /* calls that must have given the same bytes */
#define ALONE 20000    /* elements from which on other threads may run meanwhile */
#define SAMPLES 1000
#define PROVABLE 4096  /* elements of a call that may be one of those */
#define MIXED (1 << 17) /* booleans that are made numbers at once */
#define SHORT 32        /* elements of a row below which calls of the loop cost more than the elements */

static const int numbers[TYPES] = {NPY_BOOL, NPY_INT32, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64}, sizes[TYPES] = {1, 4, 8, 4, 8};

typedef struct {
    PyUFuncGenericFunction loop;
    void *data;
    char sought, proofs, mixed; /* proofs, and those of calls with booleans; < 0: NumPy alone */
    char exact;                 /* an element's result is the same wherever it stands */
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

int type_of(const PyArrayObject *array)
{
    int number = PyArray_TYPE(array);
    for (int t = 0; t < TYPES; t++)
        if (numbers[t] == number)
            return t;
    return TYPES;
}

/* A ufunc's loop for operands and result of one type. */
int find_loop(PyObject *function, int type, inner_loop *found)
{
    const PyUFuncObject *ufunc = (const PyUFuncObject *)function;
    for (int i = 0; i < ufunc->ntypes; i++) {
        int same = ufunc->functions[i] != NULL;
        for (int k = 0; k < ufunc->nargs; k++)
            same &= ufunc->types[i * ufunc->nargs + k] == type;
        if (!same)
            continue;
        *found = (inner_loop){ufunc->functions[i], ufunc->data ? (void *)ufunc->data[i] : NULL};
        return 1;
    }
    return 0;
}

static int is_exact(const PyUFuncObject *ufunc)
{
    static const char *const names[] = {"add", "subtract", "multiply", "divide"}; /* as IEEE 754 says */
    int found = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        found |= !strcmp(ufunc->name, names[i]);
    return found;
}

static way *way_of(struct direct *d, size_t fn, PyObject *function, int type, int nin)
{
    way *w = &d->ways[fn][type];
    if (!w->sought) {
        const PyUFuncObject *ufunc = (const PyUFuncObject *)function;
        w->sought = 1;
        w->exact = (char)is_exact(ufunc);
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

/* A Python number in the arrays' dtype, as NumPy takes it there; 0 where it is not exactly as simple. */
int number_as(PyObject *x, int type, element *to)
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
    npy_intp itemsize; /* of the operands */
    npy_intp shape[DIMS], strides[3][DIMS];
    char *data[3];
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

/* A short row that meets all the rows of the others, as a bias does: repeated, it meets many of them in one call of the
 * loop. The number of rows that are done; as many elements go at once as fill any processor's vectors. (Which of two
 * NaNs survives their sum depends on an element's place in the call, in NumPy as here; nothing else does.) */
static npy_intp run_rows(const way *w, call *c)
{
    union {
        char bytes[SHORT * SHORT * 8];
        double aligned;
    } repeated;
    npy_intp m = c->ndim == 2 ? c->shape[0] : 0, n = m ? c->shape[1] : 0, steps[3];
    int row = -1;
    if (m < 2 * SHORT || n < 2 || n >= SHORT || !w->exact)
        return 0;
    for (int k = 0; k < c->nargs; k++) {
        steps[k] = c->strides[k][1];
        if (c->strides[k][0] == steps[k] * n)
            continue;
        if (c->strides[k][0] || row >= 0 || k == c->nargs - 1)
            return 0;
        row = k;
    }
    if (row < 0)
        return 0;
    npy_intp size = c->itemsize, rows = (npy_intp)sizeof repeated.bytes / (n * size) / SHORT * SHORT;
    m -= m % SHORT;
    rows = rows < m ? rows : m;
    for (npy_intp i = 0; i < n; i++)
        memcpy(repeated.bytes + i * size, c->data[row] + i * steps[row], (size_t)size);
    for (npy_intp there = n * size, all = rows * there; there < all; there *= 2)
        memcpy(repeated.bytes + there, repeated.bytes, (size_t)(there < all - there ? there : all - there));
    steps[row] = size;
    for (npy_intp done = 0; done < m; done += rows) {
        char *data[3];
        npy_intp count = (m - done < rows ? m - done : rows) * n;
        for (int k = 0; k < c->nargs; k++)
            data[k] = k == row ? repeated.bytes : c->data[k] + done * c->strides[k][0];
        w->loop(data, &count, steps, w->data);
    }
    return m;
}

static void run(const way *w, call *c)
{
    npy_intp rows = run_rows(w, c);
    if (rows) {
        if (rows == c->shape[0])
            return;
        for (int k = 0; k < c->nargs; k++)
            c->data[k] += rows * c->strides[k][0];
        c->shape[0] -= rows;
    }
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
int disturbs(const PyArrayObject *into, const PyArrayObject *from)
{
    uintptr_t low, high, from_low, from_high;
    if (into == from)
        return 0;
    extent_of(into, &low, &high);
    extent_of(from, &from_low, &from_high);
    return low < from_high && from_low < high;
}

/* Whether NumPy says the same: its result is compared with ours, byte for byte. */
int same_bytes(PyArrayObject *ours, PyObject *theirs)
{
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
    Py_XDECREF(theirs);
    return same;
}

/* Our result, if NumPy's is the same: then the next ones need fewer proofs, and else there are no more of ours. */
static PyObject *proven(char *proofs, PyObject *function, PyObject *a, PyObject *b, PyArrayObject *ours)
{
    if (same_bytes(ours, PyObject_CallFunctionObjArgs(function, a, b, NULL))) {
        ++*proofs;
        return (PyObject *)ours;
    }
    *proofs = -1;
    Py_DECREF((PyObject *)ours);
    PyErr_Clear(); /* NumPy will say it again */
    return NULL;
}

/* ---- loops for those who have no call to prove them by --------------------------------------- */

/* Numbers of all kinds, others for each seed. */
static PyObject *samples(int type, unsigned seed)
{
    static const double odd[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN};
    npy_intp n = SAMPLES;
    PyObject *made = PyArray_SimpleNew(1, &n, numbers[type]);
    char *to = made ? PyArray_DATA((PyArrayObject *)made) : NULL;
    for (int i = 0; made && i < SAMPLES; i++) {
        seed = seed * 1664525u + 1013904223u;
        double x = i % 13 ? ((double)(seed >> 8) - (1 << 23)) / (1 << (seed & 15)) : odd[seed % 7];
        switch (type) {
        case BOOL: ((npy_bool *)to)[i] = seed >> 31; break;
        case INT32: ((npy_int32 *)to)[i] = (npy_int32)(seed >> 24) - 64; break;
        case INT64: ((npy_int64 *)to)[i] = (npy_int64)(seed >> 24) - 64; break;
        case FLOAT32: ((float *)to)[i] = (float)x; break;
        default: ((double *)to)[i] = x;
        }
    }
    return made;
}

static PyObject *plain_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into);

/* The loop for operands of one type and the type of what it makes, proven by samples unless calls have done that. 0: it is
 * NumPy's to compute. */
int direct_loop(struct direct *d, size_t fn, PyObject *function, int type, int nin, inner_loop *found, int *out)
{
    way *w = fn < d->count ? way_of(d, fn, function, type, nin) : NULL;
    for (unsigned i = 0; w && w->proofs >= 0 && w->proofs < PROOFS; i++) {
        PyObject *a = samples(type, i), *b = nin == 2 ? samples(type, i + 77) : NULL;
        PyObject *made = a && (b || nin == 1) ? plain_call(d, fn, function, a, b, NULL) : NULL;
        if (!made)
            w->proofs = -1; /* it is different, or does not like them */
        Py_XDECREF(made);
        Py_XDECREF(a);
        Py_XDECREF(b);
        PyErr_Clear();
    }
    if (!w || w->proofs < PROOFS)
        return 0;
    *found = (inner_loop){w->loop, w->data};
    for (*out = 0; *out < TYPES && numbers[*out] != w->out; ++*out)
        ;
    return *out < TYPES;
}

/* Whether booleans among this function's operands are numbers of that type to it. */
int direct_mixes(struct direct *d, size_t fn, PyObject *function, int type)
{
    way *w = fn < d->count ? way_of(d, fn, function, type, 2) : NULL;
    for (unsigned i = 0; w && w->mixed >= 0 && w->mixed < PROOFS; i++) {
        PyObject *a = samples(i % 2 ? BOOL : type, i), *b = samples(i % 2 ? type : BOOL, i + 77);
        PyObject *made = a && b ? direct_call(d, fn, function, a, b, NULL) : NULL;
        if (!made)
            w->mixed = -1;
        Py_XDECREF(made);
        Py_XDECREF(a);
        Py_XDECREF(b);
        PyErr_Clear();
    }
    return w && w->mixed == PROOFS;
}

/* Arrays of one shape, each in C order, or a number: one call of the loop, into a new one. NULL: it is not so simple, or
 * an exception. */
static PyObject *straight_call(const way *w, PyArrayObject *const *arrays, element *given, int nin, npy_intp itemsize)
{
    PyArrayObject *first = arrays[0] ? arrays[0] : arrays[1];
    int ndim = PyArray_NDIM(first);
    npy_intp size = PyArray_SIZE(first), steps[3];
    char *data[3];
    if (!size || size >= ALONE)
        return NULL;
    for (int k = 0; k < nin; k++) {
        PyArrayObject *array = arrays[k];
        if (array && (!PyArray_IS_C_CONTIGUOUS(array) || PyArray_NDIM(array) != ndim ||
                      !PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first), ndim)))
            return NULL;
        data[k] = array ? PyArray_DATA(array) : (char *)&given[k];
        steps[k] = array ? itemsize : 0;
    }
    PyArrayObject *out = spare_take(ndim, PyArray_DIMS(first), w->out);
    if (!out)
        return NULL;
    data[nin] = PyArray_DATA(out);
    steps[nin] = PyArray_ITEMSIZE(out);
    w->loop(data, &size, steps, w->data);
    if (PyErr_Occurred()) /* powers of integers */
        Py_CLEAR(out);
    return (PyObject *)out;
}

static PyObject *plain_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into)
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
    if (!w || (into && w->proofs < PROOFS))
        return NULL;
    element given_numbers[2];
    for (int k = 0; k < nin; k++)
        if (arrays[k] ? !is_plain(arrays[k], numbers[type]) : !number_as(given[k], type, &given_numbers[k]))
            return NULL;
    if (!into && w->proofs == PROOFS) {
        PyObject *made = straight_call(w, arrays, given_numbers, nin, sizes[type]);
        if (made || PyErr_Occurred())
            return made;
    }
    call c = {.nargs = nin + 1, .itemsize = sizes[type]};
    if (!broadcast(&c, arrays, nin))
        return NULL;
    if (into) {
        if (w->out != numbers[type] || PyArray_NDIM(out) != c.ndim || !PyArray_ISWRITEABLE(out) ||
            !PyArray_CompareLists(PyArray_DIMS(out), c.shape, c.ndim) || (arrays[1] && disturbs(out, arrays[1])))
            return NULL;
    } else
        out = spare_take(c.ndim, c.shape, w->out);
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
            c.data[k] = (char *)&given_numbers[k];
    place(&c, nin, out);
    join(&c);
    if (size >= ALONE) {
        Py_BEGIN_ALLOW_THREADS;
        run(w, &c);
        Py_END_ALLOW_THREADS;
    } else
        run(w, &c);
    if (PyErr_Occurred()) { /* powers of integers */
        if (!into)
            Py_DECREF((PyObject *)out);
        return NULL;
    }
    if (into)
        Py_RETURN_NONE;
    return w->proofs < PROOFS ? proven(&w->proofs, function, a, b, out) : (PyObject *)out;
}

/* ---- booleans among numbers ---------------------------------------------------------------- */

/* Booleans as numbers of this type, which all of them are exactly; NULL: they lie in no simple way, or an exception. */
static PyArrayObject *as_numbers(PyArrayObject *bools, int type)
{
    if (!PyArray_IS_C_CONTIGUOUS(bools) || PyArray_NDIM(bools) > DIMS)
        return NULL;
    PyArrayObject *made = (PyArrayObject *)PyArray_SimpleNew(PyArray_NDIM(bools), PyArray_DIMS(bools), numbers[type]);
    if (!made)
        return NULL;
    const npy_bool *from = PyArray_DATA(bools);
    void *to = PyArray_DATA(made);
    npy_intp n = PyArray_SIZE(bools);
#define CONVERT(T)                                                                                                   \
    for (npy_intp i = 0; i < n; i++)                                                                                 \
        ((T *)to)[i] = (T)(from[i] != 0)
    switch (type) {
    case INT32: CONVERT(npy_int32); break;
    case INT64: CONVERT(npy_int64); break;
    case FLOAT32: CONVERT(float); break;
    default: CONVERT(double);
    }
#undef CONVERT
    return made;
}

/* The booleans as numbers, then as ever; proven apart, for it is NumPy that says which numbers they become. */
static PyObject *mixed_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into)
{
    int first = PyArray_ISBOOL((PyArrayObject *)a), type = type_of((PyArrayObject *)(first ? b : a));
    way *w = type < TYPES && fn < d->count ? way_of(d, fn, function, type, 2) : NULL;
    PyArrayObject *bools = (PyArrayObject *)(first ? a : b);
    if (!w || w->mixed < 0 || (into && (first || w->mixed < PROOFS)) || PyArray_SIZE(bools) > MIXED)
        return NULL;
    PyObject *numbers_ = (PyObject *)as_numbers(bools, type);
    if (!numbers_)
        return NULL;
    PyObject *out = plain_call(d, fn, function, first ? numbers_ : a, first ? b : numbers_, into);
    Py_DECREF(numbers_);
    return !out || w->mixed == PROOFS ? out : proven(&w->mixed, function, a, b, (PyArrayObject *)out);
}

/* function(a[, b]), or with `into` the same into it. The result is a new array in C order, or None; NULL: it is
 * NumPy's to compute, or an exception. */
PyObject *direct_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into)
{
    int both = b && PyArray_CheckExact(a) && PyArray_CheckExact(b);
    if (both && PyArray_ISBOOL((PyArrayObject *)a) != PyArray_ISBOOL((PyArrayObject *)b))
        return mixed_call(d, fn, function, a, b, into);
    return plain_call(d, fn, function, a, b, into);
}
