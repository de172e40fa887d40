/* Signatures: what of a call's arguments decides its result. */
#include "issue_sign.h"

#define WORD(x)                                                                                        \
    do {                                                                                               \
        if (s->nwords == WORDS)                                                                        \
            return -1;                                                                                 \
        s->words[s->nwords++] = (uint64_t)(x);                                                         \
    } while (0)

static int sign_object(signature *s, PyObject *x, unsigned kind)
{
    WORD((uintptr_t)x | kind);
    if (s->nkept == WORDS)
        return -1;
    s->kept[s->nkept++] = x;
    return 0;
}

static int sign_int(signature *s, PyObject *x)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (overflow)
        return -1;
    WORD(IS_INT);
    WORD(value);
    return 0;
}

static int sign_slice(signature *s, PyObject *x)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(x, &start, &stop, &step)) {
        PyErr_Clear();
        return -1;
    }
    WORD(IS_SLICE);
    WORD(start);
    WORD(stop);
    WORD(step);
    return 0;
}

static int sign_array(signature *s, Remote *x)
{
    for (int i = 0; i < s->with.narrays; i++)
        if (s->with.arrays[i] == x) {
            WORD(IS_SAME | (unsigned)i << 4);
            return 0;
        }
    if (s->with.narrays == ARRAYS || !x->meta || !x->stream || x->stream != (s->with.narrays ? s->with.arrays[0]->stream : x->stream))
        return -1;
    s->with.arrays[s->with.narrays++] = x;
    return sign_object(s, x->meta, IS_META);
}

static int is_constant(PyObject *x)
{
    Py_ssize_t count = the.constants ? PyTuple_Size(the.constants) : 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_GetItem(the.constants, i) == x)
            return 1;
    return 0;
}

/* Adds what an argument says; -1 where it is one that has to be looked at each time. */
static int sign(signature *s, PyObject *x, const Quick *quick, int depth)
{
    PyTypeObject *type = Py_TYPE(x);
    if (type == the.array)
        return sign_array(s, (Remote *)x);
    if (PyLong_CheckExact(x)) {
        if (!quick->numbers)
            return sign_int(s, x);
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
        if (value < INT32_MIN || value > INT32_MAX || overflow || s->with.nnumbers == NUMBERS)
            return -1; /* whether a dtype holds it is asked each time */
        s->with.numbers[s->with.nnumbers++] = x;
        WORD(IS_NUMBER | (value < 0 || value > 127 ? 2 : 1) << 4); /* every dtype holds the small ones */
        return 0;
    }
    if (PyFloat_CheckExact(x)) {
        if (s->with.nnumbers == NUMBERS)
            return -1;
        s->with.numbers[s->with.nnumbers++] = x; /* its value never decides a layout */
        WORD(IS_NUMBER);
        return 0;
    }
    if (x == Py_None || x == Py_True || x == Py_False || x == Py_Ellipsis) {
        WORD((uintptr_t)x | IS_OBJECT);
        return 0;
    }
    if (type == &PySlice_Type)
        return sign_slice(s, x);
    if (PyTuple_CheckExact(x) && depth < 3) {
        Py_ssize_t size = PyTuple_Size(x);
        WORD(IS_TUPLE | (uint64_t)size << 4);
        for (Py_ssize_t i = 0; i < size; i++)
            if (sign(s, PyTuple_GetItem(x, i), quick, depth + 1))
                return -1;
        return 0;
    }
    if (PyUnicode_CheckExact(x) || (quick->itself && !depth && !s->nwords) || PyType_Check(x) || is_constant(x))
        return sign_object(s, x, IS_OBJECT);
    return -1;
}

int sign_call(signature *s, const Quick *quick, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    s->nwords = s->nkept = s->with.narrays = s->with.nnumbers = 0;
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < nargs; i++)
        if (sign(s, args[i], quick, 0))
            return -1;
    for (Py_ssize_t i = 0; i < named; i++)
        if (sign_object(s, PyTuple_GetItem(names, i), IS_TUPLE) || sign(s, args[nargs + i], quick, 0))
            return -1;
    if (quick->here ? s->with.narrays : !s->with.narrays || !is_queue(s->with.arrays[0]->stream))
        return -1; /* what an array says beyond its layout is no part of a signature */
    s->with.queue = quick->here ? queue_numbered(current) : (Queue *)s->with.arrays[0]->stream;
    if (!s->with.queue)
        return -1;
    WORD(s->with.queue->number);
    return 0;
}
