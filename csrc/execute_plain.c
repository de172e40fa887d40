/* Commands in their plain form: element-wise functions, views, new memory, small reads. */
#define NO_IMPORT_ARRAY
#include "execute_loop.h"

#define COPIED (96 << 10) /* as in rgpu.server.executor */

static PyObject *plain_array(const Loop *loop, uint64_t handle)
{
    const slot *s = table_find(loop->table, handle);
    return s && PyArray_CheckExact(s->entry) ? s->entry : NULL;
}

/* Enter a result that is an array of its own. FAILED, or SLOW where it is anything else. */
int keep(Loop *loop, uint64_t handle, PyObject **result)
{
    if (PyArray_CheckScalar(*result) && !PyArray_Check(*result)) {
        PyObject *array = PyArray_FromScalar(*result, NULL);
        if (!array)
            return FAILED;
        Py_DECREF(*result);
        *result = array;
    }
    if (!PyArray_CheckExact(*result))
        return SLOW;
    PyArrayObject *array = (PyArrayObject *)*result;
    int wanted = NPY_ARRAY_OWNDATA | NPY_ARRAY_C_CONTIGUOUS;
    if ((PyArray_FLAGS(array) & wanted) != wanted)
        return SLOW;
    return table_enter(loop->table, handle, *result, (int64_t)PyArray_NBYTES(array), 0) ? FAILED : DONE;
}

/* A new handle in its declared bounds that nothing has yet. */
int take_new_handle(const Loop *loop, reader *r, uint64_t *handle)
{
    return take_natural(r, handle) && *handle && !table_find(loop->table, *handle);
}

/* A new reference to an operand: an array, a float, or an integer as [INT, n]. */
PyObject *take_operand(const Loop *loop, reader *r)
{
    uint64_t x;
    int64_t integer;
    if (take_natural(r, &x)) {
        PyObject *found = plain_array(loop, x);
        Py_XINCREF(found);
        return found;
    }
    if (r->end - r->at >= 9 && *r->at == 0xcb) {
        double value;
        r->at++;
        if (!take(r, 8, &x))
            return NULL;
        memcpy(&value, &x, sizeof value);
        return PyFloat_FromDouble(value);
    }
    if (take_list(r, &x) && x == 2 && take_natural(r, &x) && x == INT && take_integer(r, &integer))
        return PyLong_FromLongLong(integer);
    return NULL;
}

/* Let Python enter a result that is not as simple as it looked; takes the reference. */
static int keep_slowly(PyObject *executor, uint64_t handle, PyObject *result)
{
    PyObject *done = PyObject_CallMethod(executor, "bind_fresh", "KO", (unsigned long long)handle, result);
    Py_DECREF(result);
    Py_XDECREF(done);
    return done ? DONE : FAILED;
}

int run_elementwise(Loop *loop, PyObject *executor, reader r, int operands)
{
    uint64_t fn, out;
    if (!take_natural(&r, &fn) || fn >= loop->count || !loop->elementwise[fn] || !take_new_handle(loop, &r, &out))
        return SLOW;
    PyObject *a = take_operand(loop, &r), *b = a && operands == 2 ? take_operand(loop, &r) : NULL;
    if (!a || (operands == 2 && !b) || (!PyArray_CheckExact(a) && (!b || !PyArray_CheckExact(b)))) {
        Py_XDECREF(a);
        Py_XDECREF(b);
        if (PyErr_Occurred())
            return FAILED;
        return SLOW;
    }
    PyObject *result = direct_call(loop->direct, fn, loop->functions[fn], a, b, NULL);
    if (!result && !PyErr_Occurred())
        result = PyObject_CallFunctionObjArgs(loop->functions[fn], a, b, NULL);
    Py_DECREF(a);
    Py_XDECREF(b);
    if (!result)
        return FAILED;
    int how = keep(loop, out, &result);
    if (how == SLOW)
        return keep_slowly(executor, out, result);
    Py_DECREF(result);
    return how;
}

int run_inplace(Loop *loop, reader r)
{
    uint64_t fn, handle;
    if (loop->lent || !take_natural(&r, &fn) || fn >= loop->count || !loop->elementwise[fn] ||
        !take_natural(&r, &handle))
        return SLOW;
    PyObject *a = plain_array(loop, handle), *b = a ? take_operand(loop, &r) : NULL;
    if (!b)
        return PyErr_Occurred() ? FAILED : SLOW;
    Py_INCREF(a);
    /* out=a; ufuncs cast by same_kind unless told otherwise */
    PyObject *result = direct_call(loop->direct, fn, loop->functions[fn], a, b, a);
    if (!result && !PyErr_Occurred())
        result = PyObject_CallFunctionObjArgs(loop->functions[fn], a, b, a, NULL);
    Py_DECREF(a);
    Py_DECREF(b);
    Py_XDECREF(result);
    return result ? DONE : FAILED;
}

/* A borrowed dtype of a short name. */
PyArray_Descr *dtype_of(Loop *loop, const char *text, size_t size)
{
    if (size >= sizeof loop->dtypes[0].text || memchr(text, 0, size))
        return NULL;
    char name[8] = {0};
    memcpy(name, text, size);
    int i = 0;
    for (; i < DTYPES && loop->dtypes[i].dtype; i++)
        if (!memcmp(loop->dtypes[i].text, name, sizeof name))
            return loop->dtypes[i].dtype;
    PyObject *found = PyObject_CallFunction(the.decode_dtype, "s#", text, (Py_ssize_t)size);
    if (!found || !PyArray_DescrCheck(found)) {
        Py_XDECREF(found);
        PyErr_Clear();
        return NULL;
    }
    if (i == DTYPES) {
        i = (unsigned char)name[2] % DTYPES;
        Py_DECREF((PyObject *)loop->dtypes[i].dtype);
    }
    memcpy(loop->dtypes[i].text, name, sizeof name);
    loop->dtypes[i].dtype = (PyArray_Descr *)found;
    return loop->dtypes[i].dtype;
}

/* Whether the elements of a layout lie within nbytes of memory; extents are at least 1. */
static int is_inside(int ndim, const npy_intp *shape, const npy_intp *strides, int64_t offset, int64_t itemsize,
                     int64_t nbytes)
{
    __int128 low = offset, high = (__int128)offset + itemsize;
    for (int i = 0; i < ndim; i++) {
        __int128 reach = (__int128)(shape[i] - 1) * strides[i];
        if (strides[i] < 0)
            low += reach;
        else
            high += reach;
    }
    return low >= 0 && high <= nbytes;
}

int run_view(Loop *loop, reader r)
{
    uint64_t out, root, ndim, again;
    int64_t offset;
    const char *text;
    size_t length;
    npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    if (!take_new_handle(loop, &r, &out) || !take_natural(&r, &root) || !take_text(&r, &text, &length) ||
        !take_list(&r, &ndim) || ndim > NPY_MAXDIMS)
        return SLOW;
    const slot *s = table_find(loop->table, root);
    if (!s || s->root || !PyArray_CheckExact(s->entry))
        return SLOW;
    PyArrayObject *base = (PyArrayObject *)s->entry;
    for (uint64_t i = 0; i < ndim; i++) {
        int64_t extent;
        if (!take_integer(&r, &extent) || extent < 1)
            return SLOW; /* an array without elements has no memory to share */
        shape[i] = (npy_intp)extent;
    }
    if (!take_list(&r, &again) || again != ndim)
        return SLOW;
    for (uint64_t i = 0; i < ndim; i++) {
        int64_t stride;
        if (!take_integer(&r, &stride))
            return SLOW;
        strides[i] = (npy_intp)stride;
    }
    if (!take_integer(&r, &offset) || !(PyArray_FLAGS(base) & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS)) ||
        !PyArray_ISWRITEABLE(base))
        return SLOW;
    PyArray_Descr *dtype = dtype_of(loop, text, length);
    if (!dtype || !is_inside((int)ndim, shape, strides, offset, PyDataType_ELSIZE(dtype), (int64_t)PyArray_NBYTES(base)))
        return SLOW;
    Py_INCREF((PyObject *)dtype);
    PyObject *view = PyArray_NewFromDescr(&PyArray_Type, dtype, (int)ndim, shape, strides,
                                          (char *)PyArray_DATA(base) + offset, NPY_ARRAY_WRITEABLE, NULL);
    if (!view)
        return FAILED;
    Py_INCREF((PyObject *)base);
    int how = PyArray_SetBaseObject((PyArrayObject *)view, (PyObject *)base) ||
                      table_enter(loop->table, out, view, 0, root)
                  ? FAILED
                  : DONE;
    Py_DECREF(view);
    return how;
}

int run_empty(Loop *loop, reader r)
{
    uint64_t out, ndim;
    const char *text;
    size_t length;
    npy_intp shape[NPY_MAXDIMS];
    if (loop->twin || !take_new_handle(loop, &r, &out) || !take_text(&r, &text, &length) || !take_list(&r, &ndim) ||
        ndim > NPY_MAXDIMS)
        return SLOW;
    PyArray_Descr *dtype = dtype_of(loop, text, length);
    if (!dtype || !PyDataType_ELSIZE(dtype))
        return SLOW;
    __int128 nbytes = PyDataType_ELSIZE(dtype);
    for (uint64_t i = 0; i < ndim; i++) {
        int64_t extent;
        if (!take_integer(&r, &extent) || extent < 1 || extent > INT32_MAX)
            return SLOW;
        shape[i] = (npy_intp)extent;
        nbytes *= extent;
        if (nbytes > INT64_MAX / 2)
            return SLOW;
    }
    if (r.at == r.end || *r.at != 0xc0) /* strides of the client's own */
        return SLOW;
    if (table_admits(loop->table, table_charge((int64_t)nbytes)))
        return FAILED;
    Py_INCREF((PyObject *)dtype);
    PyObject *array = PyArray_Empty((int)ndim, shape, dtype, 0);
    if (!array)
        return FAILED;
    int how = table_enter(loop->table, out, array, (int64_t)PyArray_NBYTES((PyArrayObject *)array), 0) ? FAILED : DONE;
    Py_DECREF(array);
    return how;
}

int run_free(Loop *loop, reader r)
{
    uint64_t count, handle;
    if (!take_list(&r, &count))
        return SLOW;
    reader check = r;
    for (uint64_t i = 0; i < count; i++)
        if (!take_natural(&check, &handle) || !handle)
            return SLOW;
    if (count > 65536)
        return SLOW;
    for (uint64_t i = 0; i < count && take_natural(&r, &handle); i++)
        table_release(loop->table, handle);
    return DONE;
}

/* An array's bytes as they lie, which may be on their way to the client when this returns. */
static PyObject *lend(Loop *loop, PyArrayObject *array)
{
    npy_intp nbytes = PyArray_NBYTES(array);
    PyObject *flat = PyArray_New(&PyArray_Type, 1, &nbytes, NPY_UINT8, NULL, PyArray_DATA(array), 0, NPY_ARRAY_CARRAY_RO, NULL);
    if (!flat)
        return NULL;
    Py_INCREF((PyObject *)array);
    PyObject *data = PyArray_SetBaseObject((PyArrayObject *)flat, (PyObject *)array) ? NULL : PyMemoryView_FromObject(flat);
    Py_DECREF(flat);
    loop->lent |= data != NULL;
    return data;
}

/* An array that is what the client takes it for, and lies as it is wanted: the answer is a copy of a small one, and of a
 * large one that leaves in one message its memory. */
PyObject *answer_to_read(Loop *loop, reader r)
{
    uint64_t reply, handle, order, ndim;
    const char *text;
    size_t length;
    if (loop->twin || !take_natural(&r, &reply) || !take_natural(&r, &handle) || !take_natural(&r, &order) ||
        order > 1 || !take_text(&r, &text, &length) || !take_list(&r, &ndim))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)plain_array(loop, handle);
    if (!array || PyArray_DESCR(array) != dtype_of(loop, text, length) || (uint64_t)PyArray_NDIM(array) != ndim ||
        PyArray_NBYTES(array) >= (loop->chunk > COPIED ? loop->chunk + 1 : COPIED) ||
        !(PyArray_FLAGS(array) & (order ? NPY_ARRAY_F_CONTIGUOUS : NPY_ARRAY_C_CONTIGUOUS)))
        return NULL;
    for (uint64_t i = 0, extent; i < ndim; i++)
        if (!take_natural(&r, &extent) || (int64_t)extent != (int64_t)PyArray_DIM(array, (int)i))
            return NULL;
    unsigned char head[16] = {0x93, DATA_REPLY};
    size_t size = 2 + store_natural(head + 2, reply);
    head[size++] = 0; /* the offset */
    if (PyArray_NBYTES(array) >= COPIED)
        return Py_BuildValue("[y#N]", (char *)head, (Py_ssize_t)size, lend(loop, array));
    return Py_BuildValue("[y#y#]", (char *)head, (Py_ssize_t)size, (char *)PyArray_DATA(array),
                         (Py_ssize_t)PyArray_NBYTES(array));
}

int run_read(Loop *loop, PyObject *executor, reader r)
{
    PyObject *frames = answer_to_read(loop, r);
    if (!frames)
        return PyErr_Occurred() ? FAILED : SLOW;
    PyObject *done = PyObject_CallMethod(executor, "post", "O", frames);
    Py_DECREF(frames);
    Py_XDECREF(done);
    return done ? DONE : FAILED;
}
