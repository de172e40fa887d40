/* The plain case of a stream's reader and writer, and the module. What is not plain (a message in parts, a large frame,
 * a pipe that is full) is for rgpu/link/framing.py, which owns the same buffer and says what is wrong. */
#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "rgpu_transport.h"

#define FRAMES 64
#define MESSAGE ((size_t)32 << 20) /* as in rgpu.link.framing */
#define BUFFER (256 << 10)
#define PLACED (96 << 10) /* as in rgpu.link.base */
#define SMALL (16 << 10) /* a message below this leaves in one piece, copied together */
#define COPY_BELOW (64 << 10) /* as in rgpu.link.base */
#define LOOKS 32         /* at shared memory, before another may use this core */
#define PAUSES 4         /* between two looks: the peer may run on the other half of this core */
#define TAKEN (64 << 10) /* bytes that are taken into the buffer at once: what is large has another place */
#define PIECE (256 << 10) /* bytes after which a sleeping reader of a ring is woken */
#define STALLED 50e-6    /* seconds without a byte after which a large frame waits for its turn like everything else */
#define AWAY 3e-6        /* seconds of giving way in which somebody else had the core */
#define MOVING 3e-3      /* seconds that one call moves a large frame on */

/* Either a socket, or a transport with a socket for its bell. */
typedef struct {
    PyObject *object; /* keeps both alive */
    int fd;
    rgpu_transport *transport;
} pipe_end;

typedef struct {
    PyObject_HEAD
    pipe_end pipe;
    PyObject *memory; /* a bytearray of BUFFER bytes that nobody resizes */
    unsigned char *buffer;
    Py_ssize_t low, high; /* where the bytes not looked at yet are */
    long long signs, taken; /* taken: bytes of messages, by link_turn.c; set back by who counts them */
    char fresh, heard, emptied, partial;
} Inlet;

typedef struct {
    PyObject_HEAD
    pipe_end pipe;
    long long given; /* as Inlet's taken */
    char torn;       /* the rest of a message was lost: the connection has no use any more */
} Outlet;

static PyObject *connection_error(const char *why)
{
    PyErr_SetString(PyExc_ConnectionError, why);
    return NULL;
}

/* (pipe): its ``native`` is a file descriptor, and the address of a transport or 0. */
static int take_pipe(pipe_end *end, PyObject *args)
{
    PyObject *object, *native;
    unsigned long long transport;
    if (!PyArg_ParseTuple(args, "O", &object) || !(native = PyObject_GetAttrString(object, "native")))
        return -1;
    int good = PyArg_ParseTuple(native, "iK", &end->fd, &transport);
    Py_DECREF(native);
    if (!good)
        return -1;
    end->transport = (rgpu_transport *)(uintptr_t)transport;
    Py_INCREF(object);
    end->object = object;
    return 0;
}

/* -1: errno says why. Needs no GIL. */
static int ring(pipe_end *end)
{
    if (end->transport->ops->ring(end->transport) && send(end->fd, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
        errno != EAGAIN && errno != EWOULDBLOCK)
        return -1;
    return 0;
}

static int ended(pipe_end *end)
{
    PyObject *said = PyObject_GetAttrString(end->object, "ended");
    int is = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    return is;
}

/* ---- reading ------------------------------------------------------------------------------- */

enum { NOTHING = 0, OVER = -1, HUNG_UP = -2, BROKEN = -3 }; /* OVER: errno says why */

/* Bytes taken, or one of the above. Needs no GIL. */
static int64_t take_raw(pipe_end *end, unsigned char *to, size_t size)
{
    if (!end->transport) {
        int64_t got = recv(end->fd, to, size, MSG_DONTWAIT);
        if (got > 0)
            return got;
        return !got ? HUNG_UP : errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? NOTHING : OVER;
    }
    int64_t got = end->transport->ops->read(end->transport, to, size);
    return got < 0 ? BROKEN : got > 0 && ring(end) ? OVER : got;
}

/* The same with an exception (-1) where the connection is over. */
static int64_t told(pipe_end *end, int64_t got)
{
    if (got > 0)
        return got;
    if (got == NOTHING) {
        int over = end->transport ? ended(end) : 0;
        if (over > 0)
            connection_error("the peer is gone");
        return over ? -1 : 0;
    }
    connection_error(got == OVER ? strerror(errno) : got == HUNG_UP ? "the peer hung up" : "the peer broke the rules of the transport, or is gone");
    return -1;
}

static int64_t take_in(Inlet *in, unsigned char *to, size_t size)
{
    return told(&in->pipe, take_raw(&in->pipe, to, size));
}

static int64_t fill(Inlet *in)
{
    if (in->low == in->high)
        in->low = in->high = 0;
    else if (in->high == BUFFER) {
        memmove(in->buffer, in->buffer + in->low, (size_t)(BUFFER - in->low));
        in->high -= in->low;
        in->low = 0;
    }
    size_t room = (size_t)(BUFFER - in->high), size = room < TAKEN ? room : TAKEN;
    int64_t got = size ? take_in(in, in->buffer + in->high, size) : 0;
    if (got > 0) {
        in->high += got;
        in->emptied = (size_t)got < size;
        in->fresh = in->heard = 1;
    }
    return got;
}

static PyObject *inlet_fill_buffer(Inlet *in, PyObject *Py_UNUSED(none))
{
    int64_t got = fill(in);
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
    int64_t got = 1;
    Py_BEGIN_ALLOW_THREADS
    double began = link_now(), heard = began, now = began;
    while (filled < place.len && got >= 0 && now - heard < STALLED && now - began < MOVING) {
        got = take_raw(&in->pipe, (unsigned char *)place.buf + filled, (size_t)(place.len - filled));
        now = link_now();
        if (got > 0) {
            filled += got;
            heard = now;
        } else if (!got)
            sched_yield();
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&place);
    if (filled > before) {
        in->emptied = 0;
        in->fresh = in->heard = 1;
    } else if (told(&in->pipe, got) < 0)
        return NULL;
    return PyLong_FromSsize_t(filled);
}

static uint32_t u32(const unsigned char *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
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
        int64_t got = in->emptied ? 0 : fill(in); /* a look in vain costs as much as a message */
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
    if (!in->memory || take_pipe(&in->pipe, args)) {
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
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot inlet_slots[] = {
    {Py_tp_new, inlet_new}, {Py_tp_dealloc, inlet_dealloc}, {Py_tp_methods, inlet_methods}, {Py_tp_members, inlet_members},
    {0, NULL},
};
PyType_Spec inlet_spec = {"rgpu._rgpu_link.Inlet", sizeof(Inlet), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, inlet_slots};

/* ---- writing ------------------------------------------------------------------------------- */

/* Bytes given, or -1: errno says why. */
static int64_t give_socket(int fd, struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    int64_t given = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (given < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return given;
}

static int64_t give_transport(pipe_end *end, const struct iovec *parts, int count)
{
    int64_t total = 0;
    if (end->transport->ops->give) {
        total = end->transport->ops->give(end->transport, parts, count);
        errno = total < 0 ? EPIPE : 0;
        return total;
    }
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < parts[i].iov_len;) {
            size_t left = parts[i].iov_len - at, size = left < PIECE ? left : PIECE;
            int64_t given = end->transport->ops->write(end->transport, (char *)parts[i].iov_base + at, size);
            if (given < 0)
                errno = EPIPE;
            if (given < 0 || ring(end))
                return -1;
            total += given;
            at += (size_t)given;
            if ((size_t)given < size)
                return total;
        }
    return total;
}

static int64_t give(pipe_end *end, struct iovec *parts, int count)
{
    return end->transport ? give_transport(end, parts, count) : give_socket(end->fd, parts, count);
}

/* The same for what is large: goes on as long as the peer takes something. */
static int64_t give_all(pipe_end *end, struct iovec *parts, int count)
{
    double began = link_now(), heard = began, now = began;
    int64_t total = 0;
    while (count && now - heard < STALLED && now - began < MOVING) {
        int64_t given = give(end, parts, count);
        if (given < 0)
            return total ? total : -1; /* the next call says it again */
        now = link_now();
        total += given;
        if (given)
            heard = now;
        else
            sched_yield();
        for (; count && (size_t)given >= parts->iov_len; parts++, count--)
            given -= (int64_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + given;
            parts->iov_len -= (size_t)given;
        }
    }
    return total;
}

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
        return give(end, parts, 1);
    }
    for (int i = 0; i < count; i++)
        parts[i + 1] = (struct iovec){frames[i].buf, (size_t)frames[i].len};
    int64_t given;
    Py_BEGIN_ALLOW_THREADS
    given = give_all(end, parts, count + 1);
    Py_END_ALLOW_THREADS
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
    if (out && take_pipe(&out->pipe, args))
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

int link_give(PyObject *outlet, PyObject *message)
{
    Outlet *out = (Outlet *)outlet;
    PyObject *missing = outlet_give(out, message), *kept = NULL;
    if (missing) {
        out->given += link_total(message);
        out->torn = PyLong_AsLongLong(missing) != 0;
    }
    if (missing && out->torn) { /* else, or where this fails, the peer has a part of a message */
        kept = PyObject_CallMethod(outlet, "keep", "OOi", message, missing, COPY_BELOW);
        out->torn = kept == NULL;
    }
    Py_XDECREF(kept);
    int failed = !missing || out->torn;
    Py_XDECREF(missing);
    return failed ? -1 : 0;
}

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
    if (!module || !link_monotonic || add_type(module, &session_spec, "Session", &types[0]) ||
        add_type(module, &inlet_spec, "Inlet", &types[1]) || add_type(module, &outlet_spec, "Outlet", &types[2])) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
