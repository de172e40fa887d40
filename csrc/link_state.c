/* A session as Python sees it: its link comes and goes, what it says of itself, its beginning and end. */
#include "link_session.h"

static PyObject *session_link_up(Session *s, PyObject *Py_UNUSED(none))
{
    double now = session_now(s);
    if (PyErr_Occurred())
        return NULL;
    s->open = 1;
    s->syncing = s->cursor > s->received;
    session_probe_soon(s, now);
    s->has_answer = s->has_probed; /* an answer may have been lost with the old link */
    s->answer = s->probed;
    Py_RETURN_NONE;
}

static PyObject *session_link_down(Session *s, PyObject *Py_UNUSED(none))
{
    s->open = 0;
    Py_RETURN_NONE;
}

static PyObject *get_unacked(Session *s, void *Py_UNUSED(closure))
{
    return Py_BuildValue("KL", (unsigned long long)(s->sent - s->received), (long long)s->unacked_bytes);
}

static PyObject *get_unfinished(Session *s, void *Py_UNUSED(closure))
{
    return Py_BuildValue("KL", (unsigned long long)(s->sent - s->done), (long long)s->unfinished_bytes);
}

static PyObject *get_progress(Session *s, void *Py_UNUSED(closure))
{
    return Py_BuildValue("KKK", (unsigned long long)s->sent, (unsigned long long)s->received, (unsigned long long)s->done);
}

static PyObject *get_idle(Session *s, void *Py_UNUSED(closure)) { return PyBool_FromLong(s->expected == s->taken_done); }

static PyObject *get_counters(Session *s, void *Py_UNUSED(closure))
{
    return Py_BuildValue("{sKsKsKsKsKsK}", "sent", s->sent, "resent", s->resent, "delivered", s->expected, "duplicates",
                         s->duplicates, "gaps", s->gaps, "refused", s->refused);
}

static PyObject *session_repr(Session *s)
{
    PyObject *hex = PyObject_CallMethod(s->id, "hex", NULL), *name = hex ? PyUnicode_Substring(hex, 0, 8) : NULL;
    Py_XDECREF(hex);
    if (!name)
        return NULL;
    PyObject *text = PyUnicode_FromFormat(
        "<Session %U epoch %d %s: sent %llu, received %llu, done %llu; delivered %llu, executed %llu>", name, s->epoch,
        s->syncing ? "syncing" : s->open ? "open" : "down", (unsigned long long)s->sent, (unsigned long long)s->received,
        (unsigned long long)s->done, (unsigned long long)s->expected, (unsigned long long)s->taken_done);
    Py_DECREF(name);
    return text;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *words[] = {"session_id", "epoch", "clock", "window_messages", "window_bytes", "rto", NULL};
    const char *id;
    Py_ssize_t size;
    unsigned char epoch;
    PyObject *clock = link_monotonic;
    unsigned long long window_messages = 256;
    long long window_bytes = 64 << 20;
    double rto = 1.0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "y#b|$OKLd:Session", words, &id, &size, &epoch, &clock, &window_messages,
                                     &window_bytes, &rto))
        return NULL;
    if (size != 16)
        return PyErr_Format(PyExc_ValueError, "a session id has 16 bytes");
    if (!window_messages || window_messages > 1 << 24)
        return PyErr_Format(PyExc_ValueError, "a window of %llu messages", window_messages);
    Session *s = (Session *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!s)
        return NULL;
    for (s->sizes_room = 1; s->sizes_room < window_messages;)
        s->sizes_room *= 2;
    s->sizes = PyMem_Calloc(s->sizes_room, sizeof *s->sizes);
    s->id = PyBytes_FromStringAndSize(id, size);
    s->refusal = PyUnicode_FromString("");
    Py_INCREF(clock);
    s->clock = clock;
    if (!s->sizes || !s->id || !s->refusal || session_make_room(s)) {
        Py_DECREF((PyObject *)s);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memcpy(s->bytes, id, 16);
    s->epoch = epoch;
    s->window_messages = window_messages;
    s->window_bytes = window_bytes;
    s->rto = s->interval = rto;
    s->open = 1;
    s->probe_at = s->ack_at = NEVER;
    s->ack_messages = window_messages / ACK_SHARE ? window_messages / ACK_SHARE : 1;
    s->ack_bytes = window_bytes / ACK_SHARE > 0 ? window_bytes / ACK_SHARE : 1;
    s->idle_since = session_now(s);
    if (PyErr_Occurred()) {
        Py_DECREF((PyObject *)s);
        return NULL;
    }
    return (PyObject *)s;
}

static int session_traverse(Session *s, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)TYPE(s));
    Py_VISIT(s->clock);
    for (uint64_t n = s->done; n < s->sent; n++)
        Py_VISIT(kept_at(s, n)->frames);
    return 0;
}

static int session_clear(Session *s)
{
    Py_CLEAR(s->clock);
    for (uint64_t n = s->done; n < s->sent; n++)
        Py_CLEAR(kept_at(s, n)->frames);
    s->open = 0;
    return 0;
}

static void session_dealloc(Session *s)
{
    PyTypeObject *type = TYPE(s);
    PyObject_GC_UnTrack(s);
    session_clear(s);
    Py_CLEAR(s->id);
    Py_CLEAR(s->refusal);
    PyMem_Free(s->ring);
    PyMem_Free(s->sizes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(s);
    Py_DECREF(type);
}

static PyMethodDef session_methods[] = {
    {"can_send", (PyCFunction)session_can_send, METH_O, NULL},
    {"send", (PyCFunction)(void (*)(void))session_send, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"poll", (PyCFunction)session_poll, METH_O, NULL},
    {"outgoing", (PyCFunction)session_outgoing, METH_O, NULL},
    {"due", (PyCFunction)session_due, METH_NOARGS, NULL},
    {"probe", (PyCFunction)session_probe, METH_NOARGS, NULL},
    {"expects", (PyCFunction)session_expects, METH_O, NULL},
    {"receive", (PyCFunction)session_receive, METH_O, NULL},
    {"mark_done", (PyCFunction)(void (*)(void))session_mark_done, METH_FASTCALL, NULL},
    {"link_up", (PyCFunction)session_link_up, METH_NOARGS, NULL},
    {"link_down", (PyCFunction)session_link_down, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef session_members[] = {
    {"session_id", T_OBJECT, offsetof(Session, id), READONLY, NULL},
    {"epoch", T_UBYTE, offsetof(Session, epoch), READONLY, NULL},
    {"window_messages", T_ULONGLONG, offsetof(Session, window_messages), READONLY, NULL},
    {"window_bytes", T_LONGLONG, offsetof(Session, window_bytes), READONLY, NULL},
    {"idle_since", T_DOUBLE, offsetof(Session, idle_since), READONLY, NULL},
    {"refused", T_ULONGLONG, offsetof(Session, refused), READONLY, NULL},
    {"refusal", T_OBJECT, offsetof(Session, refusal), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef session_getset[] = {
    {"unacked", (getter)get_unacked, NULL, NULL, NULL},   {"unfinished", (getter)get_unfinished, NULL, NULL, NULL},
    {"counters", (getter)get_counters, NULL, NULL, NULL}, {"idle", (getter)get_idle, NULL, NULL, NULL},
    {"progress", (getter)get_progress, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot session_slots[] = {
    {Py_tp_new, session_new},           {Py_tp_dealloc, session_dealloc}, {Py_tp_methods, session_methods},
    {Py_tp_members, session_members},   {Py_tp_getset, session_getset},   {Py_tp_repr, session_repr},
    {Py_tp_traverse, session_traverse}, {Py_tp_clear, session_clear},     {0, NULL},
};
PyType_Spec session_spec = {"rgpu._rgpu_link.Session", sizeof(Session), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                            session_slots};
