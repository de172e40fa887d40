/* The loop over a message's commands, and the module. */
#include "execute.h"
#include "execute_read.h"

unsigned char *templates_expand(const struct templates *all, reader r, size_t *size, uint64_t *count);

#include "execute_numpy.h"

#define COMMANDS 4096
#define FUNCTIONS 65536

#define REPLAYED 65536 /* as in rgpu.wire.limits */

enum { FREE = 2, EMPTY, VIEW, UNARY, BINARY, INPLACE, CALL, READ = 12, TEMPLATE = 16, REPLAY }; /* as in rgpu.wire.ops */
#define DATA 2        /* the reply to READ */
#define COPIED 16384 /* as in rgpu.server.executor */
enum { LIST, TUPLE, HANDLE, DTYPE, ELLIPSIS = 7, INT = 11 }; /* as in rgpu.wire.values */

struct execute the;

/* ---- the loop ------------------------------------------------------------------------------ */

enum { DONE, SLOW, FAILED }; /* SLOW: nothing has happened yet; FAILED: with an exception */

#define DTYPES 16
#define ARGUMENTS 16

typedef struct {
    PyObject_HEAD
    Table *table;
    PyObject **functions;
    char *elementwise; /* whether a function is a ufunc of NumPy's own */
    size_t count;
    char lent, watched, twin;
    struct templates *templates;
    struct direct *direct;
    struct {
        char text[8];
        PyArray_Descr *dtype;
    } dtypes[DTYPES];
} Loop;

static PyObject *plain_array(const Loop *loop, uint64_t handle)
{
    const slot *s = table_find(loop->table, handle);
    return s && PyArray_CheckExact(s->entry) ? s->entry : NULL;
}

/* Enter a result that is an array of its own. FAILED, or SLOW where it is anything else. */
static int keep(Loop *loop, uint64_t handle, PyObject **result)
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
static int take_new_handle(const Loop *loop, reader *r, uint64_t *handle)
{
    return take_natural(r, handle) && *handle && !table_find(loop->table, *handle);
}

/* A new reference to an operand: an array, a float, or an integer as [INT, n]. */
static PyObject *take_operand(const Loop *loop, reader *r)
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

static int run_elementwise(Loop *loop, PyObject *executor, reader r, int operands)
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

static int run_inplace(Loop *loop, reader r)
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
static PyArray_Descr *dtype_of(Loop *loop, const char *text, size_t size)
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

static int run_view(Loop *loop, reader r)
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

static int run_empty(Loop *loop, reader r)
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

static int run_free(Loop *loop, reader r)
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

/* ---- calls --------------------------------------------------------------------------------- */

/* The arrays among a call's arguments, which its result may turn out to be. */
typedef struct {
    PyObject *arrays[ARGUMENTS];
    int count;
} arguments;

/* A new reference to a simple value; NULL without an exception where it is not one. */
static PyObject *take_value(Loop *loop, reader *r, arguments *seen, int depth)
{
    int64_t integer;
    uint64_t count, tag, handle;
    const char *text;
    size_t length;
    if (r->at == r->end || depth > 4)
        return NULL;
    unsigned char mark = *r->at;
    PyObject *constant = mark == 0xc0 ? Py_None : mark == 0xc2 ? Py_False : mark == 0xc3 ? Py_True : NULL;
    if (constant) {
        r->at++;
        Py_INCREF(constant);
        return constant;
    }
    if (mark == 0xcb)
        return take_operand(loop, r);
    if (take_integer(r, &integer))
        return PyLong_FromLongLong(integer);
    if (take_text(r, &text, &length))
        return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict");
    if (!take_list(r, &count) || !count || !take_natural(r, &tag))
        return NULL;
    if (tag == HANDLE && count == 2) {
        if (!take_natural(r, &handle))
            return NULL;
        const slot *s = table_find(loop->table, handle);
        if (!s || (PyObject *)TYPE(s->entry) == the.poison || seen->count == ARGUMENTS)
            return NULL;
        if (PyArray_Check(s->entry))
            seen->arrays[seen->count++] = s->entry;
        Py_INCREF(s->entry);
        return s->entry;
    }
    if (tag == ELLIPSIS && count == 1) {
        Py_INCREF(Py_Ellipsis);
        return Py_Ellipsis;
    }
    if (tag == DTYPE && count == 2) {
        PyArray_Descr *dtype = take_text(r, &text, &length) ? dtype_of(loop, text, length) : NULL;
        Py_XINCREF((PyObject *)dtype);
        return (PyObject *)dtype;
    }
    if (tag == INT && count == 2)
        return take_integer(r, &integer) ? PyLong_FromLongLong(integer) : NULL;
    if ((tag != TUPLE && tag != LIST) || count > 65)
        return NULL;
    PyObject *made = tag == TUPLE ? PyTuple_New((Py_ssize_t)count - 1) : PyList_New((Py_ssize_t)count - 1);
    for (uint64_t i = 1; made && i < count; i++) {
        PyObject *item = take_value(loop, r, seen, depth + 1);
        if (!item)
            Py_CLEAR(made);
        else if (tag == TUPLE)
            PyTuple_SetItem(made, (Py_ssize_t)i - 1, item);
        else
            PyList_SetItem(made, (Py_ssize_t)i - 1, item);
    }
    return made;
}

/* Keyword arguments; 0 where they are not simple. */
static int take_named(Loop *loop, reader *r, arguments *seen, PyObject **named)
{
    *named = NULL;
    if (r->at == r->end || (*r->at & 0xf0) != 0x80)
        return 0;
    unsigned count = *r->at++ & 15;
    if (!count)
        return 1;
    *named = PyDict_New();
    for (unsigned i = 0; *named && i < count; i++) {
        const char *text;
        size_t length;
        if (!take_text(r, &text, &length))
            return 0;
        PyObject *name = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "strict");
        PyObject *value = name ? take_value(loop, r, seen, 0) : NULL;
        int bad = !value || PyDict_SetItem(*named, name, value);
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (bad)
            return 0;
    }
    return *named != NULL;
}

static int finish_call(Loop *loop, PyObject *executor, uint64_t out, PyObject *result, const arguments *seen)
{
    int mine = 0;
    for (int i = 0; i < seen->count; i++)
        mine |= seen->arrays[i] == result;
    int how = mine ? SLOW : keep(loop, out, &result);
    if (how == SLOW) {
        PyObject *arrays = PyList_New(0);
        for (int i = 0; arrays && i < seen->count; i++)
            if (PyList_Append(arrays, seen->arrays[i]))
                Py_CLEAR(arrays);
        PyObject *done = arrays ? PyObject_CallMethod(executor, "bind_result", "KOO", (unsigned long long)out, result,
                                                      arrays)
                                : NULL;
        Py_XDECREF(arrays);
        how = done ? DONE : FAILED;
        Py_XDECREF(done);
    }
    Py_DECREF(result);
    return how;
}

static int run_call(Loop *loop, PyObject *executor, reader r)
{
    uint64_t fn, outs, out = 0, count;
    arguments seen = {{NULL}, 0};
    if (loop->lent || !take_natural(&r, &fn) || fn >= loop->count || !take_list(&r, &outs) || outs > 1 ||
        (outs && !take_new_handle(loop, &r, &out)) || !take_list(&r, &count) || count > ARGUMENTS)
        return SLOW;
    PyObject *args = PyTuple_New((Py_ssize_t)count), *named = NULL;
    if (!args)
        return FAILED;
    int simple = 1, how = SLOW;
    for (uint64_t i = 0; simple && i < count; i++) {
        PyObject *value = take_value(loop, &r, &seen, 0);
        simple = value != NULL;
        if (simple)
            PyTuple_SetItem(args, (Py_ssize_t)i, value);
    }
    if (simple && take_named(loop, &r, &seen, &named)) {
        PyObject *result = PyObject_Call(loop->functions[fn], args, named);
        if (!result)
            how = FAILED;
        else if (outs)
            how = finish_call(loop, executor, out, result, &seen);
        else {
            Py_DECREF(result);
            how = DONE;
        }
    } else
        PyErr_Clear(); /* what stands there is for the executor to judge */
    Py_DECREF(args);
    Py_XDECREF(named);
    return how;
}

/* A small array that is what the client takes it for, and lies as it is wanted: its answer is a copy. */
static int run_read(Loop *loop, PyObject *executor, reader r)
{
    uint64_t reply, handle, order, ndim;
    const char *text;
    size_t length;
    if (loop->twin || !take_natural(&r, &reply) || !take_natural(&r, &handle) || !take_natural(&r, &order) ||
        order > 1 || !take_text(&r, &text, &length) || !take_list(&r, &ndim))
        return SLOW;
    PyArrayObject *array = (PyArrayObject *)plain_array(loop, handle);
    if (!array || PyArray_DESCR(array) != dtype_of(loop, text, length) || (uint64_t)PyArray_NDIM(array) != ndim ||
        PyArray_NBYTES(array) >= COPIED ||
        !(PyArray_FLAGS(array) & (order ? NPY_ARRAY_F_CONTIGUOUS : NPY_ARRAY_C_CONTIGUOUS)))
        return SLOW;
    for (uint64_t i = 0, extent; i < ndim; i++)
        if (!take_natural(&r, &extent) || (int64_t)extent != (int64_t)PyArray_DIM(array, (int)i))
            return SLOW;
    unsigned char head[16] = {0x93, DATA};
    size_t size = 2 + store_natural(head + 2, reply);
    head[size++] = 0; /* the offset */
    PyObject *done = PyObject_CallMethod(executor, "post", "[y#y#]", (char *)head, (Py_ssize_t)size,
                                         (char *)PyArray_DATA(array), (Py_ssize_t)PyArray_NBYTES(array));
    Py_XDECREF(done);
    return done ? DONE : FAILED;
}

/* ---- a message ----------------------------------------------------------------------------- */

/* The fields of the forms this loop knows, tag included; 0: another command. */
static const unsigned char fields[] = {[FREE] = 2, [EMPTY] = 5, [VIEW] = 7, [UNARY] = 4, [BINARY] = 5, [INPLACE] = 4, [CALL] = 5,
                                       [READ] = 6};

static int run_one(Loop *loop, PyObject *executor, reader r)
{
    unsigned char head = *r.at, tag = r.end - r.at > 1 ? r.at[1] : 0;
    if ((head & 0xf0) != 0x90 || tag >= sizeof fields || !fields[tag] || (head & 15) != fields[tag])
        return SLOW;
    r.at += 2;
    switch (tag) {
    case FREE: return run_free(loop, r);
    case EMPTY: return run_empty(loop, r);
    case VIEW: return run_view(loop, r);
    case UNARY: return run_elementwise(loop, executor, r, 1);
    case BINARY: return run_elementwise(loop, executor, r, 2);
    case INPLACE: return run_inplace(loop, r);
    case READ: return run_read(loop, executor, r);
    default: return run_call(loop, executor, r);
    }
}

/* The command's error belongs to the client: Python poisons and tells. Errors that end the session go on. */
static int tell_failed(PyObject *executor, uint64_t batch, uint64_t index, reader r)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    PyObject *done = PyObject_CallMethod(executor, "failed", "OKKy#", value, (unsigned long long)batch,
                                         (unsigned long long)index, (const char *)r.at, (Py_ssize_t)(r.end - r.at));
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Let Python run it; the number of commands that it stands for, or -1. */
static int64_t run_slowly(PyObject *executor, uint64_t batch, uint64_t index, reader command)
{
    PyObject *done = PyObject_CallMethod(executor, "run_one", "KKy#", (unsigned long long)batch, (unsigned long long)index,
                                         (const char *)command.at, (Py_ssize_t)(command.end - command.at));
    int64_t count = done ? PyLong_AsLongLong(done) : -1;
    Py_XDECREF(done);
    return PyErr_Occurred() ? -1 : count;
}

static int64_t run_all(Loop *loop, PyObject *executor, reader r, uint64_t batch, uint64_t index, uint64_t count, int again);

static uint64_t tag_of(reader r)
{
    uint64_t fields, tag;
    return take_list(&r, &fields) && take_natural(&r, &tag) ? tag : 0;
}

/* A Replay: its commands, or -1. Those that are unusual in any way are for the executor. */
static int64_t run_again(Loop *loop, PyObject *executor, uint64_t batch, uint64_t index, reader command)
{
    size_t size;
    uint64_t count;
    uint64_t fields, tag;
    reader r = command;
    int good = take_list(&r, &fields) && fields == 4 && take_natural(&r, &tag);
    unsigned char *made = good ? templates_expand(loop->templates, r, &size, &count) : NULL;
    if (!made || index + count > REPLAYED) {
        PyMem_Free(made);
        return run_slowly(executor, batch, index, command);
    }
    int64_t done = run_all(loop, executor, (reader){made, made + size}, batch, index, count, 1);
    PyMem_Free(made);
    return done < 0 ? -1 : (int64_t)count;
}

/* Runs `count` commands; with those that they stand for, or -1. `again`: they are a template's. */
static int64_t run_all(Loop *loop, PyObject *executor, reader r, uint64_t batch, uint64_t index, uint64_t count, int again)
{
    uint64_t first = index;
    for (; count; count--) {
        reader command = {r.at, r.end};
        skip(&r); /* it was whole when the message was looked over */
        command.end = r.at;
        int64_t ran = 1;
        int how = loop->watched ? SLOW : run_one(loop, executor, command);
        if (how == SLOW) {
            uint64_t tag = tag_of(command);
            if (again && (tag == TEMPLATE || tag == REPLAY)) {
                PyErr_SetString(the.protocol_error, "a template repeats no template");
                return -1;
            }
            ran = tag == REPLAY ? run_again(loop, executor, batch, index, command)
                                : run_slowly(executor, batch, index, command);
        } else if (how == FAILED && tell_failed(executor, batch, index, command))
            ran = -1;
        if (ran < 0)
            return -1;
        index += (uint64_t)ran;
    }
    return (int64_t)(index - first);
}

/* (executor, body) -> number of commands run, or None where this is no message: nothing has run then. */
static PyObject *loop_run(Loop *loop, PyObject *args)
{
    PyObject *executor, *body;
    Py_buffer data;
    uint64_t batch, count;
    if (!PyArg_ParseTuple(args, "OO:run", &executor, &body) || PyObject_GetBuffer(body, &data, PyBUF_SIMPLE))
        return NULL;
    reader r = {data.buf, (const unsigned char *)data.buf + data.len}, whole;
    int good = take_list(&r, &count) && count == 2 && take_natural(&r, &batch) && take_list(&r, &count) &&
               count <= COMMANDS;
    whole = r;
    for (uint64_t i = 0; good && i < count; i++)
        good = skip(&whole);
    good = good && whole.at == whole.end;
    int64_t ran = good ? run_all(loop, executor, r, batch, 0, count, 0) : 0;
    PyBuffer_Release(&data);
    if (ran < 0)
        return NULL;
    if (good)
        return PyLong_FromLongLong(ran);
    Py_RETURN_NONE;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    Table *table;
    PyObject *functions, *ufunc;
    if (!PyArg_ParseTuple(args, "OO!O:Loop", &table, &PyList_Type, &functions, &ufunc))
        return NULL;
    Py_ssize_t count = PyList_Size(functions);
    if (count < 0 || count > FUNCTIONS || !PyObject_TypeCheck((PyObject *)table, table_type) || !PyType_Check(ufunc))
        return PyErr_Format(PyExc_TypeError, "(table, [function, ...], type of ufuncs)");
    Loop *loop = (Loop *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!loop)
        return NULL;
    Py_INCREF((PyObject *)table);
    loop->table = table;
    loop->templates = templates_new();
    loop->direct = direct_new((size_t)count);
    loop->functions = PyMem_Calloc((size_t)count + 1, sizeof *loop->functions);
    loop->elementwise = PyMem_Calloc((size_t)count + 1, 1);
    if (!loop->templates || !loop->direct || !loop->functions || !loop->elementwise) {
        Py_DECREF((PyObject *)loop);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *function = PyList_GetItem(functions, i);
        Py_INCREF(function);
        loop->functions[i] = function;
        loop->elementwise[i] = (PyObject *)TYPE(function) == ufunc;
        loop->count++;
    }
    return (PyObject *)loop;
}

static int loop_traverse(Loop *loop, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)TYPE(loop));
    for (size_t i = 0; i < loop->count; i++)
        Py_VISIT(loop->functions[i]);
    Py_VISIT((PyObject *)loop->table);
    return 0;
}

static int loop_clear(Loop *loop)
{
    while (loop->count) {
        PyObject *function = loop->functions[--loop->count];
        Py_DECREF(function);
    }
    return 0; /* the table breaks its circles itself */
}

static void loop_dealloc(Loop *loop)
{
    PyTypeObject *type = TYPE(loop);
    PyObject_GC_UnTrack(loop);
    loop_clear(loop);
    for (int i = 0; i < DTYPES; i++)
        Py_XDECREF((PyObject *)loop->dtypes[i].dtype);
    templates_free(loop->templates);
    direct_free(loop->direct);
    PyMem_Free(loop->functions);
    PyMem_Free(loop->elementwise);
    Py_XDECREF((PyObject *)loop->table);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(loop);
    Py_DECREF(type);
}

static PyObject *loop_define(Loop *loop, PyObject *args)
{
    return templates_define(loop->templates, args);
}

static PyMethodDef loop_methods[] = {
    {"define", (PyCFunction)loop_define, METH_VARARGS, "Keep a template: (number, count, data, pieces, holes), checked."},
    {"run", (PyCFunction)loop_run, METH_VARARGS, "(executor, body) -> commands run; None: not a message, nothing ran."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef loop_members[] = {
    {"lent", T_BOOL, offsetof(Loop, lent), 0, "an array's memory may be on its way to the client"},
    {"watched", T_BOOL, offsetof(Loop, watched), 0, "every command is for the executor, which records it"},
    {"twin", T_BOOL, offsetof(Loop, twin), 0, "one of two: new memory and reads are for the executor"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot loop_slots[] = {
    {Py_tp_new, loop_new},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_methods, loop_methods},
    {Py_tp_members, loop_members},
    {Py_tp_traverse, loop_traverse},
    {Py_tp_clear, loop_clear},
    {0, NULL},
};
static PyType_Spec loop_spec = {"rgpu._rgpu_execute.Loop", sizeof(Loop), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                loop_slots};

/* ---- the module ---------------------------------------------------------------------------- */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[4];
    if (!PyArg_ParseTuple(args, "OOOO:configure", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    PyObject **targets[] = {&the.protocol_error, &the.memory_error, &the.poison, &the.decode_dtype};
    for (int i = 0; i < 4; i++) {
        PyObject *before = *targets[i];
        Py_INCREF(given[i]);
        *targets[i] = given[i];
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS, "(ProtocolError, OutOfMemoryError, Poison, decode_dtype), before all else."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rgpu._rgpu_execute", "The worker's loop in C; see rgpu._core.", -1, functions,
    NULL, NULL, NULL, NULL,
};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*type)
        return -1;
    Py_INCREF((PyObject *)*type);
    return PyModule_AddObject(module, name, (PyObject *)*type);
}

PyMODINIT_FUNC PyInit__rgpu_execute(void)
{
    static PyTypeObject *loop;
    import_array();
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    if (add_type(module, &account_spec, "Account", &account_type) || add_type(module, &table_spec, "Table", &table_type) ||
        add_type(module, &loop_spec, "Loop", &loop)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
