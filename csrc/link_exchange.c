/* The plain case of what a connection's owner does most: a message of a queue leaves, and its answer is looked for, in one
 * call into which no handler of a signal can come. Whatever stands against it is the long way's, rgpu/session/connection.py's,
 * and nothing has happened then. Conversation holds what has to be looked at each time. */
#include "link.h"

#include <math.h>

typedef struct {
    PyObject_HEAD
    PyObject *lock, *session, *link, *failure, *stuck, *inbox, *hope;
    long long arrivals, executed;
    char moving;
} Conversation;

static struct {
    PyObject *acquire, *release, *plain, *reader, *writer, *backlog, *events, *waker, *waiters, *turned, *take, *batch,
        *seconds, *near, *learn;
} name;

int link_names(void)
{
    static const struct {
        PyObject **at;
        const char *text;
    } all[] = {
        {&name.acquire, "acquire"}, {&name.release, "release"}, {&name.plain, "plain"},     {&name.reader, "_reader"},
        {&name.writer, "_writer"},  {&name.backlog, "backlog"}, {&name.events, "_events"},  {&name.waker, "_waker"},
        {&name.waiters, "waiters"}, {&name.turned, "_turned"},  {&name.take, "take"},       {&name.batch, "batch"},
        {&name.seconds, "seconds"}, {&name.near, "near"},       {&name.learn, "learn"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text)))
            return -1;
    return 0;
}

/* Whether an object's attribute is true; -1 with an exception. */
static int says(PyObject *object, PyObject *attribute)
{
    PyObject *found = PyObject_GetAttr(object, attribute);
    int true = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return true;
}

static int is_none(PyObject *x) { return !x || x == Py_None; }

/* The ends of a link that can take a turn now, a message of about so many bytes and (asking) its answer: 1 with new
 * references; 0: it cannot; -1 with an exception. The lock is held. */
static int take_ends(const Conversation *c, long long room, int asking, PyObject **inlet, PyObject **outlet)
{
    *inlet = *outlet = NULL;
    if (!is_none(c->failure) || !is_none(c->stuck) || c->moving || is_none(c->link) || is_none(c->session))
        return 0;
    int good = says(c->link, name.plain);
    if (good <= 0)
        return good;
    if (asking) {
        PyObject *waker = PyObject_GetAttr(c->link, name.waker);
        int waiters = waker ? says(waker, name.waiters) : -1, events = says(c->link, name.events);
        int inbox = is_none(c->inbox) ? 0 : PyObject_IsTrue(c->inbox);
        Py_XDECREF(waker);
        if (waiters || events || inbox)
            return waiters < 0 || events < 0 || inbox < 0 ? -1 : 0;
    }
    *inlet = PyObject_GetAttr(c->link, name.reader);
    *outlet = *inlet ? PyObject_GetAttr(c->link, name.writer) : NULL;
    good = *outlet ? !link_check(c->session, *inlet, *outlet) && !link_torn(*inlet, *outlet) && link_roomy(c->session, room) : -1;
    int owes = good > 0 ? says(*outlet, name.backlog) : 0;
    if (good <= 0 || owes) {
        Py_CLEAR(*inlet);
        Py_CLEAR(*outlet);
        return owes < 0 ? -1 : owes ? 0 : good;
    }
    return 1;
}

/* The queue's next message, with a payload behind it where there is one; an empty list: there is none. */
static PyObject *take_frames(PyObject *queue, PyObject *how, PyObject *payload)
{
    PyObject *take = PyObject_GetAttr(queue, name.take), *body = take ? PyObject_Call(take, how, NULL) : NULL, *frames = NULL;
    Py_XDECREF(take);
    Py_ssize_t size = body ? PyObject_Size(body) : -1;
    if (size >= 0 && (frames = PyList_New(0)) && size && (PyList_Append(frames, body) || (payload != Py_None && PyList_Append(frames, payload))))
        Py_CLEAR(frames);
    Py_XDECREF(body);
    return frames;
}

/* What the link has to do after a turn that was not plain to its end; `lost`: the connection is. */
static int turned(PyObject *link, int lost)
{
    PyObject *done = PyObject_CallMethodObjArgs(link, name.turned, lost ? Py_True : Py_False, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Behind a turn, which has `failed` with an exception or not: 0; -1 with one that is no matter of the connection. */
static int tend(PyObject *link, PyObject *inlet, PyObject *outlet, int failed)
{
    PyObject *kind, *value, *trace;
    int tended = 0;
    Py_INCREF(link);
    if (failed) {
        PyErr_Fetch(&kind, &value, &trace);
        int lost = PyErr_GivenExceptionMatches(kind, PyExc_ConnectionError);
        tended = turned(link, lost);
        if (!lost && !tended) {
            PyErr_Restore(kind, value, trace);
            tended = -1;
        } else {
            Py_XDECREF(kind);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
    } else {
        int owes = link_signs(inlet) ? 1 : says(outlet, name.backlog);
        tended = owes > 0 ? turned(link, 0) : owes;
    }
    Py_DECREF(link);
    return tended;
}

/* A turn with these frames: 1: the answer is here; 0: it is not; -1 with an exception. */
static int take_turn(Conversation *c, PyObject *inlet, PyObject *outlet, PyObject *frames, PyObject *answer, PyObject *place,
                     PyObject *patience)
{
    PyObject *got = link_turn(NULL, (PyObject *[]){c->session, inlet, outlet, frames, answer, place, patience, Py_None}, 8);
    int found = tend(c->link, inlet, outlet, !got) ? -1 : got == Py_True;
    Py_XDECREF(got);
    return found;
}

static int call_lock(PyObject *lock, PyObject *method)
{
    PyObject *done = PyObject_CallMethodObjArgs(lock, method, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Whatever is raised meanwhile goes on behind the release. */
static void release(PyObject *lock)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (call_lock(lock, name.release))
        PyErr_WriteUnraisable(lock);
    PyErr_Restore(kind, value, trace);
    Py_DECREF(lock);
}

static PyObject *none_yet(void) { return PyFloat_FromDouble(-1.0); }

/* The lock is held: 1: all that the queue gave has left; 0: nothing has; -1 with an exception. */
static int leave(Conversation *c, PyObject *queue, PyObject *how, PyObject *payload, long long room)
{
    PyObject *inlet, *outlet, *frames = NULL, *patience = NULL;
    int done = take_ends(c, room, 0, &inlet, &outlet);
    if (done > 0) {
        patience = none_yet();
        frames = patience ? take_frames(queue, how, payload) : NULL;
        done = frames ? 1 : -1;
        if (frames && PyList_Size(frames) && take_turn(c, inlet, outlet, frames, Py_None, Py_None, patience) < 0)
            done = -1;
    }
    Py_XDECREF(frames);
    Py_XDECREF(patience);
    Py_XDECREF(inlet);
    Py_XDECREF(outlet);
    return done;
}

static PyObject *conversation_leave(Conversation *c, PyObject *const *args, Py_ssize_t count)
{
    long long room = count == 4 ? PyLong_AsLongLong(args[3]) : -1;
    if (room < 0 || !PyTuple_Check(args[1]) || is_none(c->lock))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "leave(queue, how, payload, room)");
    PyObject *lock = c->lock;
    if (call_lock(lock, name.acquire))
        return NULL;
    Py_INCREF(lock);
    link_hold_collector();
    int done = leave(c, args[0], args[1], args[2], room);
    link_free_collector();
    release(lock);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *conversation_finish(Conversation *c, PyObject *answer)
{
    PyObject *lock = c->lock, *inlet, *outlet;
    if (!PyList_Check(answer) || is_none(lock))
        return PyErr_Format(PyExc_TypeError, "finish(answer)");
    if (call_lock(lock, name.acquire))
        return NULL;
    Py_INCREF(lock);
    link_hold_collector();
    int done = take_ends(c, ANSWER, 0, &inlet, &outlet);
    if (done > 0) {
        c->executed++;
        done = tend(c->link, inlet, outlet, link_finish(c->session, outlet, answer)) ? -1 : 1;
    }
    Py_XDECREF(inlet);
    Py_XDECREF(outlet);
    link_free_collector();
    release(lock);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

typedef struct {
    PyObject *queue, *how, *payload, *answer, *place, *missed, *question;
    long long room;
    int large;
} asked;

static int miss(const asked *a)
{
    Py_ssize_t count = PyTuple_Size(a->question);
    PyObject *batch = PyObject_GetAttr(a->queue, name.batch), *given = batch ? PyTuple_New(count + 1) : NULL, *done = NULL;
    if (given) {
        PyTuple_SetItem(given, 0, batch);
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *one = PyTuple_GetItem(a->question, i);
            Py_INCREF(one);
            PyTuple_SetItem(given, i + 1, one);
        }
        done = PyObject_Call(a->missed, given, NULL);
    } else
        Py_XDECREF(batch);
    Py_XDECREF(given);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Seconds to look; 0: not at all; NAN with an exception. */
static double patience_of(PyObject *hope, int large)
{
    if (link_is_spin(hope))
        return large ? link_near(hope) : link_seconds(hope);
    PyObject *found = PyObject_CallMethodObjArgs(hope, large ? name.near : name.seconds, NULL);
    double seconds = found ? PyFloat_AsDouble(found) : NAN;
    Py_XDECREF(found);
    return PyErr_Occurred() ? NAN : seconds;
}

static int learn(PyObject *hope, double waited)
{
    if (link_is_spin(hope)) {
        link_learn(hope, waited);
        return 0;
    }
    PyObject *seconds = PyFloat_FromDouble(waited), *done = seconds ? PyObject_CallMethodObjArgs(hope, name.learn, seconds, NULL) : NULL;
    Py_XDECREF(seconds);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The lock is held: 1: the answer is here; 0: the question has left; 2: it has not; -1 with an exception. */
static int exchange(Conversation *c, const asked *a, double began)
{
    PyObject *inlet = NULL, *outlet = NULL, *frames = NULL;
    double seconds = patience_of(c->hope, a->large);
    PyObject *patience = isnan(seconds) ? NULL : PyFloat_FromDouble(seconds);
    int ready = !patience ? -1 : seconds ? take_ends(c, a->room, 1, &inlet, &outlet) : 0, found = ready < 0 ? -1 : 2;
    if (ready > 0) {
        frames = take_frames(a->queue, a->how, a->payload);
        found = frames ? take_turn(c, inlet, outlet, frames, a->answer, a->place, patience) : -1;
        c->arrivals++;
        c->executed += found == 1;
        if ((found == 0 && miss(a)) || (found == 1 && !a->large && learn(c->hope, link_now() - began)))
            found = -1;
    }
    Py_XDECREF(frames);
    Py_XDECREF(patience);
    Py_XDECREF(inlet);
    Py_XDECREF(outlet);
    return found;
}

static PyObject *conversation_exchange(Conversation *c, PyObject *const *args, Py_ssize_t count)
{
    double began = link_now();
    asked a = {0};
    if (count == 9) {
        a = (asked){args[0], args[1], args[2], args[4], args[5], args[7], args[8], PyLong_AsLongLong(args[3]), PyObject_IsTrue(args[6])};
        if (PyErr_Occurred())
            return NULL;
    }
    if (count != 9 || a.room < 0 || !PyTuple_Check(a.how) || !PyTuple_Check(a.question) || is_none(c->lock) || is_none(c->hope))
        return PyErr_Format(PyExc_TypeError, "exchange(queue, how, payload, room, answer, place, large, missed, question)");
    PyObject *lock = c->lock;
    if (call_lock(lock, name.acquire))
        return NULL;
    Py_INCREF(lock);
    link_hold_collector();
    int found = exchange(c, &a, began);
    link_free_collector();
    release(lock);
    if (found == 2)
        Py_RETURN_NONE;
    return found < 0 ? NULL : PyBool_FromLong(found);
}

static int conversation_traverse(Conversation *c, visitproc visit, void *arg)
{
    Py_VISIT(TYPE(c));
    Py_VISIT(c->lock);
    Py_VISIT(c->session);
    Py_VISIT(c->link);
    Py_VISIT(c->failure);
    Py_VISIT(c->stuck);
    Py_VISIT(c->inbox);
    Py_VISIT(c->hope);
    return 0;
}

static int conversation_clear(Conversation *c)
{
    Py_CLEAR(c->lock);
    Py_CLEAR(c->session);
    Py_CLEAR(c->link);
    Py_CLEAR(c->failure);
    Py_CLEAR(c->stuck);
    Py_CLEAR(c->inbox);
    Py_CLEAR(c->hope);
    return 0;
}

static void conversation_dealloc(Conversation *c)
{
    PyTypeObject *type = TYPE(c);
    PyObject_GC_UnTrack(c);
    conversation_clear(c);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(c);
    Py_DECREF(type);
}

static PyMethodDef conversation_methods[] = {
    {"finish", (PyCFunction)conversation_finish, METH_O, "(answer) -> see rgpu.session.connection."},
    {"leave", (PyCFunction)(void (*)(void))conversation_leave, METH_FASTCALL, "(queue, how, payload, room) -> see rgpu.session.connection."},
    {"exchange", (PyCFunction)(void (*)(void))conversation_exchange, METH_FASTCALL,
     "(queue, how, payload, room, answer, place, large, missed, question) -> see rgpu.session.connection."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef conversation_members[] = {
    {"_lock", T_OBJECT, offsetof(Conversation, lock), 0, NULL},
    {"session", T_OBJECT, offsetof(Conversation, session), 0, NULL},
    {"link", T_OBJECT, offsetof(Conversation, link), 0, NULL},
    {"failure", T_OBJECT, offsetof(Conversation, failure), 0, NULL},
    {"_stuck", T_OBJECT, offsetof(Conversation, stuck), 0, NULL},
    {"_inbox", T_OBJECT, offsetof(Conversation, inbox), 0, NULL},
    {"_hope", T_OBJECT, offsetof(Conversation, hope), 0, NULL},
    {"_arrivals", T_LONGLONG, offsetof(Conversation, arrivals), 0, NULL},
    {"executed", T_LONGLONG, offsetof(Conversation, executed), 0, "messages marked as done"},
    {"_moving", T_BOOL, offsetof(Conversation, moving), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot conversation_slots[] = {
    {Py_tp_dealloc, conversation_dealloc}, {Py_tp_methods, conversation_methods}, {Py_tp_members, conversation_members},
    {Py_tp_traverse, conversation_traverse}, {Py_tp_clear, conversation_clear}, {0, NULL},
};
PyType_Spec conversation_spec = {"rgpu._rgpu_link.Conversation", sizeof(Conversation), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, conversation_slots};
