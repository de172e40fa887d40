/* The numbers of a session. Every rule is explained in rgpu/session/{session,sender,receiver}.py, which this follows. */
#include "link_session.h"

#include <time.h>

#define HEADER 48

PyObject *link_monotonic;

double link_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int64_t link_total(PyObject *frames)
{
    Py_ssize_t count = PyList_Size(frames);
    int64_t total = 0;
    if (count < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = PyObject_Size(PyList_GetItem(frames, i));
        if (size < 0)
            return -1;
        total += size;
    }
    return total;
}

double session_now(Session *s)
{
    if (s->clock == link_monotonic)
        return link_now();
    PyObject *said = PyObject_CallNoArgs(s->clock);
    if (!said)
        return -1;
    double now = PyFloat_AsDouble(said);
    Py_DECREF(said);
    return now;
}

/* ---- sending ------------------------------------------------------------------------------- */

static int can_send(const Session *s, int64_t nbytes)
{
    uint64_t unfinished = s->sent - s->done;
    return unfinished == 0 || (unfinished < s->window_messages && s->unfinished_bytes + nbytes <= s->window_bytes);
}

int session_make_room(Session *s)
{
    if (s->sent - s->done < s->room)
        return 0;
    size_t room = s->room ? 2 * s->room : 64;
    kept *ring = PyMem_Calloc(room, sizeof *ring);
    if (!ring) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint64_t n = s->done; n < s->sent; n++)
        ring[n & (room - 1)] = *kept_at(s, n);
    PyMem_Free(s->ring);
    s->ring = ring;
    s->room = room;
    return 0;
}

static void put(unsigned char *to, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *from)
{
    uint64_t value = 0;
    for (int i = 8; i-- > 0;)
        value = value << 8 | from[i];
    return value;
}

static PyObject *header(Session *s, int kind, uint64_t number)
{
    unsigned char h[HEADER] = {'r', 'g', (unsigned char)kind, 0, s->epoch};
    memcpy(h + 8, s->bytes, 16);
    put(h + 24, number);
    put(h + 32, s->expected);
    put(h + 40, s->taken_done);
    s->told_expected = s->expected;
    s->told_done = s->taken_done;
    s->untold_bytes = 0;
    s->ack_at = NEVER;
    return PyBytes_FromStringAndSize((char *)h, HEADER);
}

static PyObject *control(Session *s, int kind, uint64_t number)
{
    PyObject *head = header(s, kind, number), *message = head ? PyList_New(1) : NULL;
    if (message)
        PyList_SetItem(message, 0, head);
    else
        Py_XDECREF(head);
    return message;
}

/* The next data message that may leave now; NULL without an exception: none. */
static PyObject *data(Session *s)
{
    uint64_t number = s->cursor;
    if (number == s->sent || s->syncing || !s->open)
        return NULL;
    PyObject *frames = kept_at(s, number)->frames;
    Py_INCREF(frames); /* a new list is where the collector runs, and with it anything: this message is no one else's by then */
    s->cursor = number + 1;
    Py_ssize_t count = PyList_Size(frames);
    PyObject *message = count < 0 ? NULL : PyList_New(count + 1), *head = message ? header(s, DATA, number) : NULL;
    if (!head) {
        Py_DECREF(frames);
        Py_XDECREF(message);
        s->cursor = s->cursor > number ? number : s->cursor;
        return NULL;
    }
    PyList_SetItem(message, 0, head);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *frame = PyList_GetItem(frames, i);
        Py_INCREF(frame);
        PyList_SetItem(message, i + 1, frame);
    }
    Py_DECREF(frames);
    if (number < s->highest)
        s->resent++;
    else
        s->highest = number + 1;
    return message;
}

static PyObject *or_none(PyObject *message)
{
    if (message || PyErr_Occurred())
        return message;
    Py_RETURN_NONE;
}

PyObject *session_send(Session *s, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    int hold = count > 1 ? PyObject_IsTrue(args[1]) : names && PyTuple_Size(names) ? PyObject_IsTrue(args[count]) : 0;
    if (count < 1 || count > 2 || hold < 0)
        return PyErr_Format(PyExc_TypeError, "send(frames, hold=False)");
    int64_t nbytes = link_total(args[0]);
    double now = nbytes < 0 ? -1 : session_now(s);
    if (now < 0 && PyErr_Occurred())
        return NULL;
    if (session_make_room(s))
        return NULL;
    Py_INCREF(args[0]);
    *kept_at(s, s->sent) = (kept){args[0], nbytes};
    s->sent++;
    s->unacked_bytes += nbytes;
    s->unfinished_bytes += nbytes;
    if (isnan(s->probe_at))
        s->probe_at = now + s->rto;
    return hold || s->cursor != s->sent - 1 ? or_none(NULL) : or_none(data(s));
}

static PyObject *probe(Session *s, double now)
{
    s->probe_id++;
    s->awaiting = 1;
    s->probe_cursor = s->cursor;
    s->probe_at = now + s->interval;
    s->interval = fmin(s->interval * 2, s->rto * MAX_BACKOFF);
    return control(s, PROBE, s->probe_id);
}

static PyObject *poll_at(Session *s, double now)
{
    if (!s->open)
        return NULL;
    if (s->has_answer) {
        s->has_answer = 0;
        return control(s, PROBE_ACK, s->answer);
    }
    /* The second test: a clock that jumped back must not silence the probes. */
    if (!isnan(s->probe_at) && (now >= s->probe_at || s->probe_at - now > 2 * MAX_BACKOFF * s->rto))
        return probe(s, now);
    PyObject *message = data(s);
    if (message || PyErr_Occurred())
        return message;
    return !isnan(s->ack_at) && now >= s->ack_at ? control(s, ACK, 0) : NULL;
}

PyObject *session_poll(Session *s, PyObject *when)
{
    double now = PyFloat_AsDouble(when);
    return now == -1 && PyErr_Occurred() ? NULL : or_none(poll_at(s, now));
}

PyObject *session_outgoing(Session *s, PyObject *when)
{
    double now = PyFloat_AsDouble(when);
    PyObject *all = now == -1 && PyErr_Occurred() ? NULL : PyList_New(0), *message = NULL;
    while (all && (message = poll_at(s, now))) {
        int failed = PyList_Append(all, message);
        Py_DECREF(message);
        if (failed)
            break;
    }
    if (PyErr_Occurred())
        Py_CLEAR(all);
    return all;
}

static double due_of(const Session *s)
{
    if (!s->open)
        return NEVER;
    if (s->has_answer || (s->cursor < s->sent && !s->syncing))
        return -INFINITY;
    return isnan(s->probe_at) ? s->ack_at : isnan(s->ack_at) ? s->probe_at : fmin(s->probe_at, s->ack_at);
}

PyObject *session_due(Session *s, PyObject *Py_UNUSED(none))
{
    double due = due_of(s);
    if (isnan(due))
        Py_RETURN_NONE;
    return PyFloat_FromDouble(due);
}

void session_probe_soon(Session *s, double now)
{
    if (s->done < s->sent) {
        s->interval = s->rto;
        s->probe_at = now;
    }
}

PyObject *session_probe(Session *s, PyObject *Py_UNUSED(none))
{
    double now = session_now(s);
    if (PyErr_Occurred())
        return NULL;
    session_probe_soon(s, now);
    Py_RETURN_NONE;
}

PyObject *session_can_send(Session *s, PyObject *size)
{
    long long nbytes = PyLong_AsLongLong(size);
    if (nbytes == -1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(can_send(s, nbytes));
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* 0: it claims what it cannot have. */
static int acknowledged(Session *s, uint64_t received, uint64_t done, double now)
{
    if (done > received || received > s->highest)
        return 0;
    if (received <= s->received && done <= s->done)
        return 1;
    while (s->received < received) {
        kept *one = kept_at(s, s->received++);
        s->unacked_bytes -= one->nbytes;
        PyObject *frames = one->frames;
        one->frames = NULL;
        Py_XDECREF(frames);
    }
    while (s->done < done)
        s->unfinished_bytes -= kept_at(s, s->done++)->nbytes;
    if (s->cursor < s->received)
        s->cursor = s->received;
    if (s->cursor == s->received)
        s->syncing = 0; /* nothing is on its way: nothing can be missing */
    if (!s->syncing) {
        s->interval = s->rto;
        s->probe_at = s->done < s->sent ? now + s->rto : NEVER;
    }
    return 1;
}

static void answered(Session *s, uint64_t number, uint64_t received)
{
    if (!s->awaiting || number != s->probe_id)
        return; /* an older probe: it says nothing about what left since */
    s->awaiting = s->syncing = 0;
    if (received < s->probe_cursor)
        s->cursor = received > s->received ? received : s->received;
}

static void news(Session *s, int64_t nbytes, double now)
{
    s->untold_bytes += nbytes;
    uint64_t messages = s->expected - s->told_expected + s->taken_done - s->told_done;
    if (messages >= s->ack_messages || s->untold_bytes >= s->ack_bytes)
        s->ack_at = now;
    else if (isnan(s->ack_at) || s->ack_at > now + ACK_DELAY)
        s->ack_at = now + ACK_DELAY;
}

static int accept_data(Session *s, uint64_t number, int64_t nbytes, double now)
{
    if (number != s->expected) {
        if (number < s->expected) {
            s->duplicates++;
            s->ack_at = now; /* the peer does not know that we have it */
        } else
            s->gaps++;
        return 0;
    }
    uint64_t open = s->expected - s->taken_done;
    if (open && (open >= s->window_messages || s->open_bytes + nbytes > s->window_bytes)) {
        s->gaps++; /* a peer that ignores the window keeps the message */
        return 0;
    }
    s->sizes[s->expected & (s->sizes_room - 1)] = nbytes;
    s->expected++;
    s->open_bytes += nbytes;
    news(s, nbytes, now);
    return 1;
}

typedef struct {
    int kind;
    uint64_t number, received, done;
} fields;

/* Whether these bytes are a header of this session and epoch. */
static int parse(Session *s, PyObject *head, fields *f)
{
    Py_buffer view;
    if (PyObject_GetBuffer(head, &view, PyBUF_SIMPLE)) {
        PyErr_Clear();
        return 0;
    }
    const unsigned char *h = view.buf;
    int good = view.len == HEADER && h[0] == 'r' && h[1] == 'g' && h[4] == s->epoch && !memcmp(h + 8, s->bytes, 16) &&
               h[2] >= DATA && h[2] <= PROBE_ACK;
    if (good)
        *f = (fields){h[2], get(h + 24), get(h + 32), get(h + 40)};
    PyBuffer_Release(&view);
    return good;
}

static PyObject *refuse(Session *s, PyObject *why)
{
    if (!why)
        return NULL;
    PyObject *before = s->refusal;
    s->refused++;
    s->refusal = why;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyObject *session_receive(Session *s, PyObject *frames)
{
    fields f;
    Py_ssize_t count = PyList_Size(frames);
    if (count < 0)
        return NULL;
    if (!count || !parse(s, PyList_GetItem(frames, 0), &f))
        return refuse(s, PyUnicode_FromString("not a header of this session and epoch"));
    double now = session_now(s);
    if (now < 0 && PyErr_Occurred())
        return NULL;
    if (!acknowledged(s, f.received, f.done, now))
        return refuse(s, PyUnicode_FromFormat("acknowledges %llu received, %llu done; %llu were sent",
                                              (unsigned long long)f.received, (unsigned long long)f.done,
                                              (unsigned long long)s->highest));
    s->idle_since = now;
    if (f.kind == DATA) {
        PyObject *payload = PyList_GetSlice(frames, 1, count);
        int64_t nbytes = payload ? link_total(payload) : -1;
        if (nbytes >= 0 && accept_data(s, f.number, nbytes, now))
            return payload;
        Py_XDECREF(payload);
        return or_none(NULL);
    }
    if (f.kind == PROBE) {
        s->probed = s->has_probed && s->probed > f.number ? s->probed : f.number;
        s->answer = s->probed;
        s->has_probed = s->has_answer = 1;
    } else if (f.kind == PROBE_ACK)
        answered(s, f.number, f.received);
    Py_RETURN_NONE;
}

PyObject *session_expects(Session *s, PyObject *head)
{
    fields f;
    if (!parse(s, head, &f) || f.kind != DATA || f.number != s->expected)
        Py_RETURN_FALSE;
    double now = session_now(s);
    if (now < 0 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(acknowledged(s, f.received, f.done, now));
}

PyObject *session_mark_done(Session *s, PyObject *const *args, Py_ssize_t count)
{
    long long n = count ? PyLong_AsLongLong(args[0]) : 1;
    if (n == -1 && PyErr_Occurred())
        return NULL;
    if (n <= 0 || (uint64_t)n > s->expected - s->taken_done)
        return PyErr_Format(PyExc_ValueError, "%lld done, but %llu delivered messages are open", n,
                            (unsigned long long)(s->expected - s->taken_done));
    double now = session_now(s);
    if (now < 0 && PyErr_Occurred())
        return NULL;
    int64_t finished = 0;
    while (n--)
        finished += s->sizes[s->taken_done++ & (s->sizes_room - 1)];
    s->open_bytes -= finished;
    news(s, finished, now);
    return PyBool_FromLong(due_of(s) <= now);
}

PyObject *link_send(PyObject *session, PyObject *frames) { return session_send((Session *)session, &frames, 1, NULL); }

PyObject *link_receive(PyObject *session, PyObject *frames) { return session_receive((Session *)session, frames); }

int link_expects(PyObject *session, PyObject *header)
{
    PyObject *said = session_expects((Session *)session, header);
    int expects = said ? said == Py_True : -1;
    Py_XDECREF(said);
    return expects;
}

int link_can_send(PyObject *session, int64_t nbytes) { return can_send((Session *)session, nbytes); }

int link_roomy(PyObject *session, int64_t nbytes)
{
    const Session *s = (Session *)session;
    return s->sent - s->done <= s->window_messages / 2 && can_send(s, nbytes);
}

PyObject *link_due(PyObject *session)
{
    Session *s = (Session *)session;
    double now = session_now(s);
    return PyErr_Occurred() ? NULL : poll_at(s, now);
}

int link_done(PyObject *session)
{
    PyObject *none = session_mark_done((Session *)session, NULL, 0);
    Py_XDECREF(none);
    return none ? 0 : -1;
}
