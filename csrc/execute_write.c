/* Bytes from the client's memory: where a large frame belongs, and the message that brings them. */
#define NO_IMPORT_ARRAY
#include "execute_loop.h"
#include "rgpu_copy.h"

#define FRAME ((npy_intp)16 << 20) /* bytes, as in rgpu.wire.limits */
#define ALONE (1 << 20) /* bytes from which on other threads may run meanwhile: to have them wait costs as much */

/* Of a Write whose fields r stands before, of the first payload frame: its array, which has its bytes side by side and may be
 * changed now. Borrowed; NULL: the executor judges it. */
static PyArrayObject *take_target(const Loop *loop, reader r, npy_intp *offset)
{
    uint64_t handle, at, frame;
    if (loop->lent || loop->watched || loop->twin || !take_natural(&r, &handle) || !take_natural(&r, &at) ||
        !take_natural(&r, &frame) || frame || r.at != r.end)
        return NULL;
    const slot *s = table_find(loop->table, handle);
    if (!s || !PyArray_CheckExact(s->entry))
        return NULL;
    PyArrayObject *array = (PyArrayObject *)s->entry;
    if (!(PyArray_ISNUMBER(array) || PyArray_ISBOOL(array)) || !PyArray_ISWRITEABLE(array) ||
        !(PyArray_IS_C_CONTIGUOUS(array) || PyArray_IS_F_CONTIGUOUS(array)) || at >= (uint64_t)PyArray_NBYTES(array))
        return NULL;
    *offset = (npy_intp)at;
    return array;
}

/* The same of a message that is nothing but one Write. */
static PyArrayObject *take_only_target(const Loop *loop, PyObject *body, npy_intp *offset)
{
    Py_buffer data;
    uint64_t batch, count;
    if (PyObject_GetBuffer(body, &data, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return NULL;
    }
    reader r = {data.buf, (const unsigned char *)data.buf + data.len};
    int good = take_list(&r, &count) && count == 2 && take_natural(&r, &batch) && take_list(&r, &count) && count == 1 &&
               r.end - r.at > 2 && r.at[0] == 0x94 && r.at[1] == WRITE;
    PyArrayObject *array = good ? take_target(loop, (reader){r.at + 2, r.end}, offset) : NULL;
    PyBuffer_Release(&data);
    return array;
}

/* Bytes to an array from its offset on; 0: they are more than it has there, or no bytes. */
static int fill(PyArrayObject *array, npy_intp offset, PyObject *payload)
{
    Py_buffer data;
    if (PyObject_GetBuffer(payload, &data, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return 0;
    }
    char *to = PyArray_BYTES(array) + offset;
    int fits = data.len <= PyArray_NBYTES(array) - offset;
    if (fits && data.buf != to) { /* else it was received in its place */
        if (data.len < ALONE)
            copy_bytes(to, data.buf, (size_t)data.len);
        else {
            Py_INCREF((PyObject *)array);
            Py_BEGIN_ALLOW_THREADS;
            copy_bytes(to, data.buf, (size_t)data.len);
            Py_END_ALLOW_THREADS;
            Py_DECREF((PyObject *)array);
        }
    }
    PyBuffer_Release(&data);
    return fits;
}

int run_write(Loop *loop, reader r)
{
    npy_intp offset = 0;
    PyArrayObject *array = loop->payload && PyList_Size(loop->payload) > 0 ? take_target(loop, r, &offset) : NULL;
    return array && fill(array, offset, PyList_GetItem(loop->payload, 0)) ? DONE : SLOW;
}

/* (frames) -> the memory where the next frame of this message belongs, writable; NotImplemented: the executor knows. */
PyObject *loop_place(Loop *loop, PyObject *frames)
{
    npy_intp offset = 0;
    PyArrayObject *array = PyList_Check(frames) && PyList_Size(frames) == 1
                               ? take_only_target(loop, PyList_GetItem(frames, 0), &offset)
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
    PyArrayObject *array = take_only_target(loop, body, &offset);
    return array && fill(array, offset, payload) ? PyList_New(0) : NULL;
}
