/* Bytes from the client's memory: where a large frame belongs, and the message that brings them. */
#define NO_IMPORT_ARRAY
#include "execute_loop.h"

#define FRAME ((npy_intp)16 << 20) /* bytes, as in rgpu.wire.limits */
#define ALONE (64 << 10)           /* bytes from which on other threads may run meanwhile */

/* A message of one Write, of the first payload frame: its array, which has its bytes side by side and may be changed now.
 * Borrowed; NULL: it is another message, or the executor's to judge. */
static PyArrayObject *take_target(const Loop *loop, PyObject *body, npy_intp *offset)
{
    Py_buffer data;
    uint64_t batch, count, handle, at, frame;
    if (loop->lent || loop->watched || loop->twin || PyObject_GetBuffer(body, &data, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return NULL;
    }
    reader r = {data.buf, (const unsigned char *)data.buf + data.len};
    int good = take_list(&r, &count) && count == 2 && take_natural(&r, &batch) && take_list(&r, &count) && count == 1 &&
               r.end - r.at > 2 && r.at[0] == 0x94 && r.at[1] == WRITE;
    r.at += good ? 2 : 0;
    good = good && take_natural(&r, &handle) && take_natural(&r, &at) && take_natural(&r, &frame) && !frame && r.at == r.end;
    PyBuffer_Release(&data);
    const slot *s = good ? table_find(loop->table, handle) : NULL;
    if (!s || !PyArray_CheckExact(s->entry))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)s->entry;
    if (!(PyArray_ISNUMBER(array) || PyArray_ISBOOL(array)) || !PyArray_ISWRITEABLE(array) ||
        !(PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)) || at >= (uint64_t)PyArray_NBYTES(array))
        return NULL;
    *offset = (npy_intp)at;
    return array;
}

/* (frames) -> the memory where the next frame of this message belongs, writable; NotImplemented: the executor knows. */
PyObject *loop_place(Loop *loop, PyObject *frames)
{
    npy_intp offset = 0;
    PyArrayObject *array = PyList_Check(frames) && PyList_Size(frames) == 1
                               ? take_target(loop, PyList_GetItem(frames, 0), &offset)
                               : NULL;
    if (!array)
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp left = PyArray_NBYTES(array) - offset, size = left < FRAME ? left : FRAME;
    PyObject *bytes = PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(NPY_UBYTE), 1, &size, NULL,
                                           PyArray_BYTES(array) + offset, NPY_ARRAY_WRITEABLE, NULL);
    Py_INCREF((PyObject *)array);
    if (!bytes || PyArray_SetBaseObject((PyArrayObject *)bytes, (PyObject *)array)) {
        if (!bytes)
            Py_DECREF((PyObject *)array);
        Py_XDECREF(bytes);
        return NULL;
    }
    PyObject *place = PyMemoryView_FromObject(bytes);
    Py_DECREF(bytes);
    return place;
}

/* The message whose payload this is has been carried out: an empty list, as nothing is to be answered. NULL without an
 * exception: it is the executor's, and nothing has happened. */
PyObject *answer_to_write(Loop *loop, PyObject *body, PyObject *payload)
{
    npy_intp offset = 0;
    PyArrayObject *array = take_target(loop, body, &offset);
    Py_buffer data;
    if (!array || PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return NULL;
    }
    char *to = PyArray_BYTES(array) + offset;
    int fits = data.len <= PyArray_NBYTES(array) - offset;
    if (fits && data.buf != to) { /* else it was received in its place */
        if (data.len < ALONE)
            memcpy(to, data.buf, (size_t)data.len);
        else {
            Py_INCREF((PyObject *)array);
            Py_BEGIN_ALLOW_THREADS;
            memcpy(to, data.buf, (size_t)data.len);
            Py_END_ALLOW_THREADS;
            Py_DECREF((PyObject *)array);
        }
    }
    PyBuffer_Release(&data);
    return fits ? PyList_New(0) : NULL;
}
