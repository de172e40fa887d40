/* Calls with simple arguments. */
#define NO_IMPORT_ARRAY
#include "execute_loop.h"

#define ARGUMENTS 16

/* The arrays among a call's arguments, which its result may turn out to be. */
typedef struct {
    PyObject *arrays[ARGUMENTS];
    int count;
} arguments;

PyArrayObject *take_array(const Loop *loop, reader *r)
{
    uint64_t count, tag, handle;
    if (!take_list(r, &count) || count != 2 || !take_natural(r, &tag) || tag != HANDLE || !take_natural(r, &handle))
        return NULL;
    const slot *s = table_find(loop->table, handle);
    return s && PyArray_CheckExact(s->entry) ? (PyArrayObject *)s->entry : NULL;
}

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

/* The calls that need no machinery; SLOW: it is not such a call. */
static int run_directly(Loop *loop, uint64_t fn, int outs, uint64_t out, reader r)
{
    if ((loop->directly[fn] != call_assign) != outs)
        return SLOW;
    PyObject *result = loop->directly[fn](loop, fn, &r);
    if (!result)
        return PyErr_Occurred() ? FAILED : SLOW;
    loop->straight++;
    int how = outs ? keep(loop, out, &result) : DONE;
    Py_DECREF(result);
    return how;
}

int run_call(Loop *loop, PyObject *executor, reader r)
{
    uint64_t fn, outs, out = 0, count;
    arguments seen = {{NULL}, 0};
    if (loop->lent || !take_natural(&r, &fn) || fn >= loop->count || !take_list(&r, &outs) || outs > 1 ||
        (outs && !take_new_handle(loop, &r, &out)))
        return SLOW;
    if (loop->directly[fn]) {
        int how = run_directly(loop, fn, outs != 0, out, r);
        if (how != SLOW)
            return how;
    }
    if (!take_list(&r, &count) || count > ARGUMENTS)
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
