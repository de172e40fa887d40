/* One turn of a conversation in one call: send a message of the session's, look for the answer, take it. What is not
 * plain (a message in parts, a link that is full, an answer nobody expected) is left to rgpu.session.connection, whose long
 * way does the same and is this one's twin. */
#include "link.h"

#define ANSWER 32768 /* bytes that the window must have room for before an answer is made */

/* Whether a delivered message is the answer that was hoped for; its data lie in `place` then. */
static int is_answer(PyObject *payload, PyObject *answer, PyObject *place)
{
    Py_buffer to = {0}, data = {0}, head, wanted;
    Py_ssize_t count = PyList_Size(payload);
    if (answer == Py_None || count < 1 || count > 2 || !PyBytes_Check(PyList_GetItem(payload, 0)))
        return 0;
    if (PyObject_GetBuffer(PyList_GetItem(payload, 0), &head, PyBUF_SIMPLE))
        return -1;
    if (PyObject_GetBuffer(answer, &wanted, PyBUF_SIMPLE)) {
        PyBuffer_Release(&head);
        return -1;
    }
    int same = head.len == wanted.len && !memcmp(head.buf, wanted.buf, (size_t)head.len);
    PyBuffer_Release(&head);
    PyBuffer_Release(&wanted);
    if (!same)
        return 0;
    if (PyObject_GetBuffer(place, &to, PyBUF_WRITABLE))
        return -1;
    if (count == 2 && PyObject_GetBuffer(PyList_GetItem(payload, 1), &data, PyBUF_SIMPLE))
        same = -1;
    else if ((same = data.len == to.len) && to.len)
        memcpy(to.buf, data.buf, (size_t)to.len);
    if (data.obj)
        PyBuffer_Release(&data);
    PyBuffer_Release(&to);
    return same;
}

/* None: all of it has left, or waits in the session; (message, missing): the link did not take so many bytes. */
static PyObject *send_one(PyObject *session, PyObject *outlet, PyObject *frames)
{
    PyObject *message = link_send(session, frames), *missing, *both = NULL;
    if (!message || message == Py_None)
        return message;
    missing = link_give(outlet, message);
    if (missing && PyLong_AsLongLong(missing) == 0) {
        Py_INCREF(Py_None);
        both = Py_None;
    } else if (missing)
        both = PyTuple_Pack(2, message, missing);
    Py_XDECREF(missing);
    Py_DECREF(message);
    return both;
}

/* What `run` makes of a delivered message leaves at once, and says that the message is done. As send_one, but True where all
 * of it has left, and the payload itself where this is nothing for `run`, or the window is full. */
static PyObject *answer_one(PyObject *session, PyObject *outlet, PyObject *run, PyObject *payload)
{
    PyObject *answer = link_can_send(session, ANSWER) ? PyObject_CallFunctionObjArgs(run, payload, NULL) : NULL;
    if (!answer && PyErr_Occurred())
        return NULL;
    if (!answer || answer == Py_None) {
        Py_XDECREF(answer);
        Py_INCREF(payload);
        return payload;
    }
    PyObject *left = link_done(session) ? NULL : send_one(session, outlet, answer);
    Py_DECREF(answer);
    if (left != Py_None)
        return left;
    Py_DECREF(left);
    Py_RETURN_TRUE;
}

PyObject *link_turn(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 8 || link_check(args[0], args[1], args[2]))
        return PyErr_Format(PyExc_TypeError, "turn(session, inlet, outlet, frames, answer, place, patience, run)");
    PyObject *session = args[0], *inlet = args[1], *found;
    double patience = PyFloat_AsDouble(args[6]);
    if (patience == -1 && PyErr_Occurred())
        return NULL;
    if (args[3] != Py_None) {
        PyObject *left = send_one(session, args[2], args[3]);
        if (left != Py_None)
            return left;
        Py_DECREF(left);
        if (patience < 0)
            Py_RETURN_NONE;
    }
    double until = link_now() + patience;
    for (;;) {
        found = link_take(inlet);
        if (!found)
            return NULL;
        if (found == Py_None) {
            Py_DECREF(found);
            if (patience > 0 && link_found(inlet, until - link_now()))
                continue;
            Py_RETURN_NONE;
        }
        if (found == Py_NotImplemented) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        PyObject *payload = link_receive(session, found);
        Py_DECREF(found);
        if (!payload)
            return NULL;
        if (payload == Py_None) { /* an acknowledgement, or nothing of ours */
            Py_DECREF(payload);
            continue;
        }
        if (args[7] != Py_None) {
            found = answer_one(session, args[2], args[7], payload);
            Py_DECREF(payload);
            return found;
        }
        int answered = is_answer(payload, args[4], args[5]);
        if (answered > 0 && !link_done(session)) {
            Py_DECREF(payload);
            Py_RETURN_TRUE;
        }
        if (!PyErr_Occurred())
            return payload;
        Py_DECREF(payload);
        return NULL;
    }
}
