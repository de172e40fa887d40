/* A large frame in the turn that waits for it: its bytes go from the pipe to their place. What stops on the way is
 * handed to rgpu.link.framing in the middle of its frame, as if that had begun it. */
#define _GNU_SOURCE
#include "link_pipe.h"
#include "rgpu_copy.h"

#define HEAD 16       /* bytes of the head of a message of three frames */
#define PAUSED 500e-6 /* seconds without a byte after which whoever waits does other things */
#define BETWEEN 4096  /* bytes that the first two frames have at most */

enum { YES, NO, MORE };

/* Whether the message that begins in the buffer is three frames, the last of which alone is large. */
static int begins(const Inlet *in)
{
    const unsigned char *head = in->buffer + in->low;
    Py_ssize_t here = in->high - in->low;
    if (here < HEAD)
        return here >= 4 && u32(head) != 3 ? NO : MORE;
    if (u32(head) != 3 || u32(head + 4) > BETWEEN || u32(head + 8) > BETWEEN || u32(head + 12) < PLACED ||
        u32(head + 12) > MESSAGE - 2 * BETWEEN)
        return NO;
    return here < HEAD + (Py_ssize_t)u32(head + 4) + (Py_ssize_t)u32(head + 8) ? MORE : YES;
}

/* The message's first two frames, a list. The buffer is as it was. */
static PyObject *first_frames(const Inlet *in)
{
    const unsigned char *head = in->buffer + in->low, *from = head + HEAD;
    return Py_BuildValue("[y#y#]", (const char *)from, (Py_ssize_t)u32(head + 4), (const char *)from + u32(head + 4),
                         (Py_ssize_t)u32(head + 8));
}

/* Where the large frame goes: exactly so many bytes, an object with their memory. None: that is for the long way. */
static PyObject *place_of(PyObject *session, PyObject *frames, PyObject *answer, PyObject *place, Py_ssize_t size)
{
    int wanted = link_expects(session, PyList_GetItem(frames, 0));
    if (wanted > 0 && answer != Py_None)
        wanted = PyObject_RichCompareBool(PyList_GetItem(frames, 1), answer, Py_EQ);
    if (wanted < 0)
        return NULL;
    if (!wanted)
        Py_RETURN_NONE;
    Py_INCREF(place);
    if (answer != Py_None)
        return place;
    PyObject *rest = PyList_GetSlice(frames, 1, 2), *found = rest ? PyObject_CallFunctionObjArgs(place, rest, NULL) : NULL;
    Py_DECREF(place);
    Py_XDECREF(rest);
    if (!found || found == Py_None || PyObject_Size(found) < size)
        return found && found != Py_None && !PyErr_Occurred() ? (Py_DECREF(found), Py_INCREF(Py_None), Py_None) : found;
    PyObject *part = PySequence_GetSlice(found, 0, size);
    Py_DECREF(found);
    return part;
}

/* Bytes of the large frame that lie in their place now. */
static int64_t move_in(Inlet *in, const Py_buffer *to, int64_t *got)
{
    Py_ssize_t here = in->high - in->low, size = here < to->len ? here : to->len;
    copy_bytes(to->buf, in->buffer + in->low, (size_t)size);
    in->low += size;
    *got = 1;
    int64_t filled = size;
    link_rest_collector();
    Py_BEGIN_ALLOW_THREADS
    if (filled < to->len)
        filled += pipe_take_all(&in->pipe, (unsigned char *)to->buf + filled, (size_t)(to->len - filled), PAUSED, got);
    Py_END_ALLOW_THREADS
    link_resume_collector();
    in->fresh = in->heard = 1;
    in->emptied = 0;
    return filled;
}

/* The long way goes on with a message whose large frame is here in part, as if it had begun it; the reader's attributes are
 * explained there. No line of Python runs, and so no handler of a signal. */
static int hand_over(Inlet *in, PyObject *frames, PyObject *place, int64_t filled)
{
    PyObject *reader = &in->ob_base, *flat = PyObject_CallMethod(reader, "flat", "Os", place, "u1");
    PyObject *view = flat ? PyMemoryView_FromObject(flat) : NULL;
    PyObject *sizes = Py_BuildValue("(nnn)", PyObject_Size(PyList_GetItem(frames, 0)), PyObject_Size(PyList_GetItem(frames, 1)),
                                    view ? PyObject_Size(view) : 0);
    PyObject *done = PyLong_FromLongLong(filled);
    int failed = !view || !sizes || !done || PyObject_SetAttrString(reader, "_filled", done) ||
                 PyObject_SetAttrString(reader, "_frames", frames) || PyObject_SetAttrString(reader, "_sizes", sizes) ||
                 PyObject_SetAttrString(reader, "_place", view);
    in->partial = !failed;
    Py_XDECREF(flat);
    Py_XDECREF(view);
    Py_XDECREF(sizes);
    Py_XDECREF(done);
    return failed ? -1 : 0;
}

/* The message with its large frame, whose place is known; as link_take_large. */
static PyObject *take_rest(Inlet *in, PyObject *frames, PyObject *place, Py_ssize_t size)
{
    Py_buffer to;
    int64_t got;
    if (PyObject_GetBuffer(place, &to, PyBUF_WRITABLE)) {
        PyErr_Clear(); /* the long way knows how */
        Py_RETURN_NONE;
    }
    PyObject *found = NULL, *data = NULL;
    if (to.len != size) {
        found = Py_None;
        Py_INCREF(found);
    } else {
        in->low += HEAD + PyBytes_Size(PyList_GetItem(frames, 0)) + PyBytes_Size(PyList_GetItem(frames, 1));
        int64_t filled = move_in(in, &to, &got);
        if (filled < size) {
            in->torn = (got < 0 && pipe_told(&in->pipe, got) < 0) || hand_over(in, frames, place, filled);
            found = in->torn ? NULL : Py_None;
            Py_XINCREF(found);
        } else if ((data = PyMemoryView_Check(place) ? (Py_INCREF(place), place)
                                                     : PyMemoryView_FromMemory(to.buf, size, PyBUF_READ)) &&
                   !PyList_Append(frames, data)) {
            in->taken += link_total(frames);
            found = frames;
            Py_INCREF(found);
        }
        Py_XDECREF(data);
    }
    PyBuffer_Release(&to);
    return found;
}

/* A message that is no plain one has begun to come. Where it is one with a large frame for ``place`` (of the ``answer`` that
 * is hoped for; without one what ``place([second frame])`` returns), all of it, the memory of its last frame in its place: a
 * list, which is not to be kept longer than the place. NotImplemented: too little of it is here to say. None: all else, which is
 * for the long way. */
PyObject *link_take_large(PyObject *session, PyObject *inlet, PyObject *answer, PyObject *place)
{
    Inlet *in = (Inlet *)inlet;
    int64_t got = 1;
    int begun = in->partial ? NO : begins(in);
    while (begun == MORE && (got = inlet_fill(in)) > 0)
        begun = begins(in);
    if (got < 0)
        return NULL;
    if (begun == MORE)
        Py_RETURN_NOTIMPLEMENTED;
    if (begun == NO)
        Py_RETURN_NONE;
    Py_ssize_t size = u32(in->buffer + in->low + 12);
    PyObject *frames = first_frames(in);
    PyObject *where = frames ? place_of(session, frames, answer, place, size) : NULL, *found = where;
    if (where && where != Py_None) {
        found = take_rest(in, frames, where, size);
        Py_DECREF(where);
    }
    Py_XDECREF(frames);
    return found;
}
