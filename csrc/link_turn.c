/* One turn of a conversation in one call: send a message of the session's, look for the answer, take it. What is not
 * plain (a message in parts, a link that is full, an answer nobody expected) is left to rgpu.session.connection, whose long
 * way does the same and is this one's twin. */
#define _GNU_SOURCE
#include <sched.h>

#include "link.h"
#include "rgpu_copy.h"

#define TOGETHER 16        /* answers in turn that came while this end gave way: the peer has this core, too */
#define SETTLED 1e-3       /* seconds between two moves to another core */

static _Thread_local int held, collects;

void link_hold_collector(void)
{
    if (!held++)
        collects = PyGC_Disable();
}

void link_free_collector(void)
{
    if (!--held && collects)
        PyGC_Enable();
}

void link_rest_collector(void)
{
    if (held && collects)
        PyGC_Enable();
}

void link_resume_collector(void)
{
    if (held)
        collects = PyGC_Disable();
}

/* Whether a message is the answer that was hoped for, behind its header; its data lie in `place` then. */
static int is_answer(PyObject *message, PyObject *answer, PyObject *place)
{
    Py_buffer to = {0}, data = {0}, head, wanted;
    Py_ssize_t count = PyList_Size(message);
    if (count < 2 || count > 3)
        return 0;
    if (PyObject_GetBuffer(PyList_GetItem(message, 1), &head, PyBUF_SIMPLE))
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
    if (PyObject_GetBuffer(place, &to, PyBUF_WRITABLE)) {
        PyErr_Clear(); /* the long way knows how */
        return 0;
    }
    if (count == 3 && PyObject_GetBuffer(PyList_GetItem(message, 2), &data, PyBUF_SIMPLE))
        same = -1;
    else if ((same = data.len == to.len) && to.len)
        copy_bytes(to.buf, data.buf, (size_t)to.len);
    if (data.obj)
        PyBuffer_Release(&data);
    PyBuffer_Release(&to);
    return same;
}

/* All of it has left, or waits in the session, or in the writer: -1 with an exception. */
static int send_one(PyObject *session, PyObject *outlet, PyObject *frames)
{
    PyObject *message = link_send(session, frames);
    int failed = !message || (message != Py_None && link_give(outlet, message));
    Py_XDECREF(message);
    return failed ? -1 : 0;
}

/* What the session itself has to say by now, if anything. */
static int send_due(PyObject *session, PyObject *outlet)
{
    PyObject *message = link_due(session);
    int failed = message ? link_give(outlet, message) : PyErr_Occurred() != NULL;
    Py_XDECREF(message);
    return failed ? -1 : 0;
}

int link_finish(PyObject *session, PyObject *outlet, PyObject *answer)
{
    if (link_done(session))
        return -1;
    return PyList_Size(answer) ? send_one(session, outlet, answer) : send_due(session, outlet);
}

/* What `run` makes of a delivered message leaves at once, and says that the message is done: True. The payload itself
 * where this is nothing for `run`, or the window is full. */
static PyObject *answer_one(PyObject *session, PyObject *outlet, PyObject *run, PyObject *payload)
{
    link_rest_collector();
    PyObject *answer = link_can_send(session, ANSWER) ? PyObject_CallFunctionObjArgs(run, payload, NULL) : NULL;
    link_resume_collector();
    if (!answer && PyErr_Occurred())
        return NULL;
    if (!answer || answer == Py_None) {
        Py_XDECREF(answer);
        Py_INCREF(payload);
        return payload;
    }
    int failed = link_finish(session, outlet, answer);
    Py_DECREF(answer);
    if (failed)
        return NULL;
    Py_RETURN_TRUE;
}

/* The session's word on the answer, whose data lie in their place: True; NotImplemented: it was none. */
static PyObject *deliver(PyObject *session, PyObject *message)
{
    PyObject *payload = link_receive(session, message);
    int delivered = payload && payload != Py_None;
    Py_XDECREF(payload);
    if (!payload || (delivered && link_done(session)))
        return NULL;
    if (delivered)
        Py_RETURN_TRUE;
    Py_RETURN_NOTIMPLEMENTED;
}

/* A message that has come, for a client that hopes for one answer: True, or None where it is another one that the session
 * would deliver, which stays where it was; NotImplemented: it was none of these, and nothing is left of it. Whatever a signal's
 * handler raises when this returns, nothing is lost. */
static PyObject *hope(PyObject *session, PyObject *inlet, PyObject *message, PyObject *answer, PyObject *place)
{
    int expected = PyList_Size(message) > 1 ? link_expects(session, PyList_GetItem(message, 0)) : 0;
    int found = expected > 0 ? is_answer(message, answer, place) : expected;
    if (found < 0)
        return NULL;
    if (expected && !found) {
        link_put_back(inlet, message);
        Py_RETURN_NONE;
    }
    return deliver(session, message);
}

/* A message that has come, for a worker: what `run` says, or its payload; NotImplemented: it has none. */
static PyObject *serve(PyObject *session, PyObject *outlet, PyObject *message, PyObject *run)
{
    PyObject *payload = link_receive(session, message), *found;
    if (!payload)
        return NULL;
    if (payload == Py_None) { /* an acknowledgement, or nothing of ours */
        Py_DECREF(payload);
        Py_RETURN_NOTIMPLEMENTED;
    }
    if (run == Py_None)
        return payload;
    found = answer_one(session, outlet, run, payload);
    Py_DECREF(payload);
    return found;
}

/* The calling thread goes on on another core, if it may. */
static void move_away(void)
{
#ifdef __linux__
    cpu_set_t allowed, others;
    int here = sched_getcpu();
    if (here < 0 || here >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    others = allowed;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
        sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

static int this_core(void)
{
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

/* This thread and its peer share a core. A wake-up puts the woken beside the waker, and the scheduler leaves two that give way
 * to each other where they are, though other cores are idle: a round trip then takes three times as long. */
static void settle_elsewhere(void)
{
    static _Thread_local double moved;
    double now = link_now();
    if (now - moved >= SETTLED) {
        moved = now;
        move_away();
    }
}

void link_learn_place(int gave)
{
    static _Thread_local int times;
    times = gave ? times + 1 : 0;
    if (times >= TOGETHER) {
        times = 0;
        settle_elsewhere();
    }
}

void link_learn_core(int core)
{
    if (core >= 0 && core == this_core())
        settle_elsewhere();
}

static PyObject *take_turn(PyObject *const *args, Py_ssize_t count)
{
    if (count != 8 || link_check(args[0], args[1], args[2]))
        return PyErr_Format(PyExc_TypeError, "turn(session, inlet, outlet, frames, answer, place, patience, run)");
    PyObject *session = args[0], *inlet = args[1], *answer = args[4];
    double patience = PyFloat_AsDouble(args[6]);
    if (patience == -1 && PyErr_Occurred())
        return NULL;
    if (args[3] != Py_None) {
        if (send_one(session, args[2], args[3]))
            return NULL;
        if (patience < 0)
            Py_RETURN_NONE;
    }
    double until = link_now() + patience;
    for (;;) {
        PyObject *message = link_take(inlet), *found;
        int large = 0;
        if (!message)
            return NULL;
        if (message == Py_NotImplemented && args[5] != Py_None) {
            Py_DECREF(message);
            message = link_take_large(session, inlet, answer, args[5]);
            if (!message || message == Py_None)
                return message;
            large = message != Py_NotImplemented;
        } else if (message == Py_NotImplemented) {
            Py_DECREF(message);
            Py_RETURN_NONE;
        }
        if (message == Py_None || message == Py_NotImplemented) {
            Py_DECREF(message);
            if (patience > 0 && link_found(inlet, until - link_now(), answer != Py_None))
                continue;
            Py_RETURN_NONE;
        }
        found = answer == Py_None ? serve(session, args[2], message, args[7])
                : large           ? deliver(session, message)
                                  : hope(session, inlet, message, answer, args[5]);
        Py_DECREF(message);
        if (found != Py_NotImplemented)
            return found;
        Py_DECREF(found);
    }
}

PyObject *link_turn(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    link_hold_collector();
    PyObject *found = take_turn(args, count);
    link_free_collector();
    return found;
}
