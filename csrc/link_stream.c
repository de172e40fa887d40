/* The plain case of a stream's reader and writer, and the module. What is not plain (a message in parts, a large frame,
 * a pipe that is full) is for rgpu/link/framing.py, which owns the same buffer and says what is wrong. */
#define _GNU_SOURCE
#include "link_pipe.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>

#define SMALL (16 << 10) /* a message below this leaves in one piece, copied together */
#define COPY_BELOW (64 << 10) /* as in rgpu.link.base */
#define LOOKS 32         /* at shared memory, before another may use this core */
#define PAUSES 4         /* between two looks: the peer may run on the other half of this core */
#define TAKEN (64 << 10) /* bytes that are taken into the buffer at once: what is large has another place */
#define SELDOM 8         /* how many looks at what is small there are to one at where it came from, which costs as much */
#define AWAY 3e-6        /* seconds of giving way in which somebody else had the core */

static PyObject *connection_error(const char *why)
{
    PyErr_SetString(PyExc_ConnectionError, why);
    return NULL;
}

/* ---- reading ------------------------------------------------------------------------------- */

int64_t inlet_fill(Inlet *in)
{
    if (in->low == in->high)
        in->low = in->high = 0;
    else if (in->high == BUFFER) {
        memmove(in->buffer, in->buffer + in->low, (size_t)(BUFFER - in->low));
        in->high -= in->low;
        in->low = 0;
    }
    size_t room = (size_t)(BUFFER - in->high), size = room < TAKEN ? room : TAKEN;
    int64_t got = size ? pipe_told(&in->pipe, pipe_take(&in->pipe, in->buffer + in->high, size)) : 0;
    if (got > 0) {
        in->high += got;
        in->emptied = (size_t)got < size;
        in->fresh = in->heard = 1;
        if (got >= TAKEN / 4 || !(++in->fills % SELDOM))
            link_learn_core(pipe_core(&in->pipe));
    }
    return got;
}

static PyObject *inlet_fill_buffer(Inlet *in, PyObject *Py_UNUSED(none))
{
    int64_t got = inlet_fill(in);
    return got < 0 ? NULL : PyBool_FromLong(got > 0);
}

/* (place, filled) -> how much of it is filled now: takes in what comes as long as it comes. */
static PyObject *inlet_fill_place(Inlet *in, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer place;
    Py_ssize_t filled = count == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    if (filled < 0 || PyObject_GetBuffer(args[0], &place, PyBUF_WRITABLE))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "(place, filled)");
    Py_ssize_t before = filled;
    int64_t got;
    link_rest_collector();
    Py_BEGIN_ALLOW_THREADS
    filled += pipe_take_all(&in->pipe, (unsigned char *)place.buf + filled, (size_t)(place.len - filled), STALLED, &got);
    Py_END_ALLOW_THREADS
    link_resume_collector();
    PyBuffer_Release(&place);
    if (filled > before) {
        in->emptied = 0;
        in->fresh = in->heard = 1;
    } else if (pipe_told(&in->pipe, got) < 0)
        return NULL;
    return PyLong_FromSsize_t(filled);
}

/* Whether the message at ``low`` will be plain when it is whole. */
static int is_plain(const Inlet *in, uint32_t count)
{
    const unsigned char *head = in->buffer + in->low;
    size_t whole = 4 + 4 * (size_t)count;
    if (count > FRAMES || (size_t)(in->high - in->low) < whole)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = u32(head + 4 + 4 * i);
        if (size >= PLACED)
            return 0;
        whole += size;
    }
    return whole <= BUFFER;
}

/* The message at ``low`` if it is plain and whole; NULL without an exception: it is not. */
static PyObject *plain_message(Inlet *in, uint32_t count)
{
    const unsigned char *head = in->buffer + in->low;
    size_t here = (size_t)(in->high - in->low), whole = 4 + 4 * (size_t)count;
    if (count > FRAMES || here < whole)
        return NULL;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size = u32(head + 4 + 4 * i);
        if (size >= PLACED || here - whole < size)
            return NULL;
        whole += size;
    }
    PyObject *frames = PyList_New(count);
    const unsigned char *from = head + 4 + 4 * (size_t)count;
    for (uint32_t i = 0; frames && i < count; i++) {
        uint32_t size = u32(head + 4 + 4 * i);
        PyObject *frame = PyBytes_FromStringAndSize((const char *)from, size);
        if (!frame || PyList_SetItem(frames, i, frame))
            Py_CLEAR(frames);
        from += size;
    }
    if (frames) {
        in->low += (Py_ssize_t)whole;
        in->fresh = in->low < in->high || !in->emptied;
    }
    return frames;
}

/* The next message; None: there is none now; NotImplemented: what there is is not plain. */
static PyObject *inlet_take(Inlet *in, PyObject *Py_UNUSED(none))
{
    while (!in->partial) {
        if (in->high - in->low >= 4) {
            uint32_t count = u32(in->buffer + in->low);
            if (!count) {
                in->low += 4;
                in->signs++;
                continue;
            }
            PyObject *frames = plain_message(in, count);
            if (frames || PyErr_Occurred())
                return frames;
            if (!is_plain(in, count))
                break;
        } else if (in->high != in->low)
            break;
        int64_t got = in->emptied ? 0 : inlet_fill(in); /* a look in vain costs as much as a message */
        if (got < 0)
            return NULL;
        if (!got) {
            in->fresh = in->emptied = 0;
            Py_RETURN_NONE;
        }
    }
    Py_RETURN_NOTIMPLEMENTED;
}

static void rest(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int has_news(const pipe_end *end)
{
    if (end->transport)
        return end->transport->ops->news(end->transport);
    struct pollfd asked = {end->fd, POLLIN, 0};
    return poll(&asked, 1, 0) != 0;
}

/* (seconds) -> whether there is something to read: looks for so long, and sleeps never. Others that want this core have
 * it between two looks: the peer may be one of them. ``asking``: this end has asked the peer, and may go to another core;
 * if both did they would meet there. */
int link_found(PyObject *inlet, double patience, int asking)
{
    Inlet *in = (Inlet *)inlet;
    int found, gave = 0;
    link_rest_collector();
    Py_BEGIN_ALLOW_THREADS
    double until = link_now() + patience;
    const rgpu_transport *far = in->pipe.transport;
    int calls = !far || far->ops->fd((rgpu_transport *)far) == in->pipe.fd; /* a look at a socket is a system call */
    int between = calls ? LOOKS * PAUSES : PAUSES;
    do {
        found = has_news(&in->pipe);
        for (int i = 0; !found && i < LOOKS; i += between / PAUSES) {
            for (int k = 0; k < between; k++)
                rest();
            found = has_news(&in->pipe);
        }
        if (!found) {
            double before = link_now();
            sched_yield();
            gave |= link_now() - before > AWAY;
        }
    } while (!found && link_now() < until);
    if (asking && found)
        link_learn_place(gave);
    Py_END_ALLOW_THREADS
    link_resume_collector();
    if (found)
        in->emptied = 0;
    return found;
}

static PyObject *inlet_look(Inlet *in, PyObject *seconds)
{
    double patience = PyFloat_AsDouble(seconds);
    return patience == -1 && PyErr_Occurred() ? NULL : PyBool_FromLong(link_found((PyObject *)in, patience, 0));
}

static PyObject *inlet_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    Inlet *in = (Inlet *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!in)
        return NULL;
    in->memory = PyByteArray_FromStringAndSize(NULL, BUFFER);
    if (!in->memory || pipe_from(&in->pipe, args)) {
        Py_DECREF((PyObject *)in);
        return NULL;
    }
    in->buffer = (unsigned char *)PyByteArray_AsString(in->memory);
    in->heard = 1;
    return (PyObject *)in;
}

static void inlet_dealloc(Inlet *in)
{
    PyTypeObject *type = TYPE(in);
    Py_XDECREF(in->pipe.object);
    Py_XDECREF(in->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(in);
    Py_DECREF(type);
}

static PyMethodDef inlet_methods[] = {
    {"take", (PyCFunction)inlet_take, METH_NOARGS, "The next message, None, or NotImplemented: it is not a plain one."},
    {"fill_buffer", (PyCFunction)inlet_fill_buffer, METH_NOARGS, "Take in what has come, without waiting; whether anything has."},
    {"fill_place", (PyCFunction)(void (*)(void))inlet_fill_place, METH_FASTCALL, "(place, filled) -> how much is filled now."},
    {"look", (PyCFunction)inlet_look, METH_O, "(seconds) -> whether there is something to read; looks for so long."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef inlet_members[] = {
    {"_memory", T_OBJECT, offsetof(Inlet, memory), READONLY, NULL},
    {"_low", T_PYSSIZET, offsetof(Inlet, low), 0, NULL},
    {"_high", T_PYSSIZET, offsetof(Inlet, high), 0, NULL},
    {"signs", T_LONGLONG, offsetof(Inlet, signs), 0, NULL},
    {"taken", T_LONGLONG, offsetof(Inlet, taken), 0, NULL},
    {"fresh", T_BOOL, offsetof(Inlet, fresh), 0, NULL},
    {"heard", T_BOOL, offsetof(Inlet, heard), 0, NULL},
    {"_emptied", T_BOOL, offsetof(Inlet, emptied), 0, NULL},
    {"_partial", T_BOOL, offsetof(Inlet, partial), 0, NULL},
    {"torn", T_BOOL, offsetof(Inlet, torn), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot inlet_slots[] = {
    {Py_tp_new, inlet_new}, {Py_tp_dealloc, inlet_dealloc}, {Py_tp_methods, inlet_methods}, {Py_tp_members, inlet_members},
    {0, NULL},
};
PyType_Spec inlet_spec = {"rgpu._rgpu_link.Inlet", sizeof(Inlet), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, inlet_slots};

/* ---- writing ------------------------------------------------------------------------------- */

static void store_u32(unsigned char *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

/* A small message leaves in one piece, a large one as it lies and without the GIL. */
static int64_t give_message(pipe_end *end, const unsigned char *head, size_t length, const Py_buffer *frames, int count,
                            size_t total)
{
    struct iovec parts[FRAMES + 1] = {{(void *)head, length}};
    if (total < SMALL) {
        unsigned char whole[SMALL + 4 + 4 * FRAMES], *to = whole;
        memcpy(to, head, length);
        to += length;
        for (int i = 0; i < count; i++) {
            memcpy(to, frames[i].buf, (size_t)frames[i].len);
            to += frames[i].len;
        }
        parts[0] = (struct iovec){whole, (size_t)(to - whole)};
        return pipe_give(end, parts, 1);
    }
    for (int i = 0; i < count; i++)
        parts[i + 1] = (struct iovec){frames[i].buf, (size_t)frames[i].len};
    int64_t given;
    link_rest_collector();
    Py_BEGIN_ALLOW_THREADS
    given = pipe_give_all(end, parts, count + 1);
    Py_END_ALLOW_THREADS
    link_resume_collector();
    return given;
}

/* (frames) -> bytes of the message, head included, that the pipe did not take. */
static PyObject *outlet_give(Outlet *out, PyObject *frames)
{
    Py_ssize_t count = PyList_Size(frames);
    Py_buffer views[FRAMES];
    unsigned char head[4 + 4 * FRAMES];
    size_t total = 0;
    int held = 0;
    if (count < 0)
        return NULL;
    for (; count <= FRAMES && held < count; held++) {
        if (PyObject_GetBuffer(PyList_GetItem(frames, held), &views[held], PyBUF_SIMPLE))
            break;
        store_u32(head + 4 + 4 * held, (uint32_t)views[held].len);
        total += (size_t)views[held].len;
    }
    int64_t given = -1;
    int held_all = held == count;
    if (held_all && total <= MESSAGE) {
        store_u32(head, (uint32_t)count);
        given = give_message(&out->pipe, head, 4 + 4 * (size_t)count, views, held, total);
    }
    int problem = errno;
    while (held--)
        PyBuffer_Release(&views[held]);
    if (given >= 0)
        return PyLong_FromLongLong((long long)(4 + 4 * count + (Py_ssize_t)total) - given);
    if (PyErr_Occurred())
        return NULL;
    if (held_all && total <= MESSAGE)
        return connection_error(strerror(problem));
    return PyErr_Format(PyExc_ValueError, "a message of %zd frames and %zu bytes", count, total);
}

static PyObject *outlet_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    Outlet *out = (Outlet *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (out && pipe_from(&out->pipe, args))
        Py_CLEAR(out);
    return (PyObject *)out;
}

static void outlet_dealloc(Outlet *out)
{
    PyTypeObject *type = TYPE(out);
    Py_XDECREF(out->pipe.object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(out);
    Py_DECREF(type);
}

static PyMethodDef outlet_methods[] = {
    {"give", (PyCFunction)outlet_give, METH_O, "(frames) -> how many bytes of the message the pipe did not take, its head included."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef outlet_members[] = {
    {"given", T_LONGLONG, offsetof(Outlet, given), 0, NULL},
    {"torn", T_BOOL, offsetof(Outlet, torn), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot outlet_slots[] = {
    {Py_tp_new, outlet_new}, {Py_tp_dealloc, outlet_dealloc}, {Py_tp_methods, outlet_methods}, {Py_tp_members, outlet_members},
    {0, NULL},
};
PyType_Spec outlet_spec = {"rgpu._rgpu_link.Outlet", sizeof(Outlet), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                           outlet_slots};

PyObject *link_take(PyObject *inlet)
{
    PyObject *message = inlet_take((Inlet *)inlet, NULL);
    if (message && message != Py_None && message != Py_NotImplemented)
        ((Inlet *)inlet)->taken += link_total(message);
    return message;
}

void link_put_back(PyObject *inlet, PyObject *message)
{
    Inlet *in = (Inlet *)inlet;
    int64_t size = link_total(message);
    in->taken -= size;
    in->low -= (Py_ssize_t)size + 4 + 4 * PyList_Size(message);
    in->fresh = 1;
}

static int keep_part(PyObject *outlet, PyObject *frame, int64_t written, int64_t *kept, int *borrowed)
{
    Py_ssize_t size = PyObject_Size(frame);
    PyObject *view = size < 0 ? NULL : PyMemoryView_FromObject(frame);
    PyObject *left = view ? PySequence_GetSlice(view, (Py_ssize_t)written, size) : NULL;
    int lies = !PyBytes_Check(frame) && size >= COPY_BELOW;
    if (left && !lies && !PyBytes_Check(frame)) {
        PyObject *bytes = PyBytes_FromObject(left);
        Py_DECREF(left);
        left = bytes ? PyMemoryView_FromObject(bytes) : NULL;
        Py_XDECREF(bytes);
    }
    PyObject *rest = left ? PyObject_GetAttrString(outlet, "_rest") : NULL;
    PyObject *done = rest ? PyObject_CallMethod(rest, "append", "O", left) : NULL;
    *kept += size - written;
    *borrowed |= lies;
    Py_XDECREF(view);
    Py_XDECREF(left);
    Py_XDECREF(rest);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The writer keeps what the pipe did not take of a message, as its ``keep`` does; but no line of Python runs, and so no handler
 * of a signal, which would find half a message here. */
static int keep_rest(PyObject *outlet, PyObject *message, int64_t missing)
{
    Py_ssize_t count = PyList_Size(message);
    unsigned char head[4 + 4 * FRAMES];
    int64_t whole = 4 + 4 * (int64_t)count + link_total(message), written = whole - missing, kept = 0;
    int borrowed = 0, failed = 0;
    store_u32(head, (uint32_t)count);
    for (Py_ssize_t i = 0; i < count; i++)
        store_u32(head + 4 + 4 * i, (uint32_t)PyObject_Size(PyList_GetItem(message, i)));
    for (Py_ssize_t i = -1; i < count && !failed; i++) {
        PyObject *frame = i < 0 ? PyBytes_FromStringAndSize((char *)head, 4 + 4 * count) : PyList_GetItem(message, i);
        int64_t size = frame ? PyObject_Size(frame) : -1;
        if (size > written)
            failed = keep_part(outlet, frame, written, &kept, &borrowed);
        failed |= size < 0;
        written = written > size ? written - size : 0;
        if (i < 0)
            Py_XDECREF(frame);
    }
    PyObject *owed = failed ? NULL : PyObject_GetAttrString(outlet, "backlog");
    PyObject *more = owed ? PyLong_FromLongLong(PyLong_AsLongLong(owed) + kept) : NULL;
    failed = !more || PyObject_SetAttrString(outlet, "backlog", more) ||
             (borrowed && PyObject_SetAttrString(outlet, "borrowed", Py_True));
    Py_XDECREF(owed);
    Py_XDECREF(more);
    return failed ? -1 : 0;
}

int link_give(PyObject *outlet, PyObject *message)
{
    Outlet *out = (Outlet *)outlet;
    PyObject *missing = outlet_give(out, message);
    if (missing) {
        out->given += link_total(message);
        out->torn = PyLong_AsLongLong(missing) != 0;
    }
    if (missing && out->torn) /* else, or where this fails, the peer has a part of a message */
        out->torn = keep_rest(outlet, message, PyLong_AsLongLong(missing)) != 0;
    int failed = !missing || out->torn;
    Py_XDECREF(missing);
    return failed ? -1 : 0;
}

int link_torn(PyObject *inlet, PyObject *outlet) { return ((Inlet *)inlet)->torn || ((Outlet *)outlet)->torn; }

int link_signs(PyObject *inlet) { return ((Inlet *)inlet)->signs != 0; }

/* ---- the module ---------------------------------------------------------------------------- */

static PyTypeObject *types[3]; /* of sessions, inlets and outlets */

int link_check(PyObject *session, PyObject *inlet, PyObject *outlet)
{
    PyObject *given[] = {session, inlet, outlet};
    for (int i = 0; i < 3; i++)
        if (!PyObject_TypeCheck(given[i], types[i]))
            return -1;
    return 0;
}

static PyMethodDef functions[] = {
    {"turn", (PyCFunction)(void (*)(void))link_turn, METH_FASTCALL, "(session, inlet, outlet, frames, answer, place, patience, run): see rgpu.link.base.Link.turn."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rgpu._rgpu_link", "Small messages in C; see rgpu._native.",
                                        -1, functions, NULL, NULL, NULL, NULL};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **known)
{
    PyObject *type = PyType_FromSpec(spec);
    *known = (PyTypeObject *)type;
    return type ? PyModule_AddObject(module, name, type) : -1;
}

PyMODINIT_FUNC PyInit__rgpu_link(void)
{
    PyObject *module = PyModule_Create(&definition), *time = PyImport_ImportModule("time");
    link_monotonic = time ? PyObject_GetAttrString(time, "monotonic") : NULL;
    Py_XDECREF(time);
    static PyTypeObject *conversation;
    if (!module || !link_monotonic || link_names() || link_add_spin(module) || add_type(module, &conversation_spec, "Conversation", &conversation) ||
        add_type(module, &session_spec, "Session", &types[0]) ||
        add_type(module, &inlet_spec, "Inlet", &types[1]) || add_type(module, &outlet_spec, "Outlet", &types[2])) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
