/* What the two files of the session share: its numbers, and the rules that are its methods. */
#ifndef RGPU_LINK_SESSION_H
#define RGPU_LINK_SESSION_H
#include "link.h"

#include <math.h>

#define ACK_DELAY 0.01
#define ACK_SHARE 8
#define MAX_BACKOFF 8
enum { DATA = 1, ACK, PROBE, PROBE_ACK };
#define NEVER NAN /* of a time: there is none */

typedef struct {
    PyObject *frames; /* NULL once the peer has them */
    int64_t nbytes;
} kept;

typedef struct {
    PyObject_HEAD
    PyObject *clock, *id, *refusal;
    unsigned char bytes[16];
    unsigned char epoch;
    uint64_t window_messages;
    int64_t window_bytes;
    /* what we send: ring[done .. sent) */
    uint64_t sent, cursor, highest, received, done, resent;
    int64_t unacked_bytes, unfinished_bytes;
    char open, syncing, awaiting;
    kept *ring;
    size_t room; /* of the ring: a power of two */
    uint64_t probe_id, probe_cursor;
    double probe_at, interval, rto;
    /* what we get: sizes[taken_done .. expected) */
    uint64_t expected, taken_done, told_expected, told_done, duplicates, gaps, ack_messages;
    int64_t open_bytes, untold_bytes, ack_bytes;
    int64_t *sizes;
    size_t sizes_room;
    double ack_at;
    /* both */
    uint64_t probed, answer, refused;
    char has_probed, has_answer;
    double idle_since;
} Session;

static inline kept *kept_at(Session *s, uint64_t number) { return &s->ring[number & (s->room - 1)]; }
double session_now(Session *s);                  /* -1 with an exception */
int session_make_room(Session *s);               /* for one more message to send; -1 with an exception */
void session_probe_soon(Session *s, double now); /* the peer is asked how far it is, if anything is unfinished */

/* methods */
PyObject *session_can_send(Session *s, PyObject *size);
PyObject *session_send(Session *s, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *session_poll(Session *s, PyObject *when);
PyObject *session_outgoing(Session *s, PyObject *when);
PyObject *session_due(Session *s, PyObject *none);
PyObject *session_probe(Session *s, PyObject *none);
PyObject *session_expects(Session *s, PyObject *head);
PyObject *session_receive(Session *s, PyObject *frames);
PyObject *session_mark_done(Session *s, PyObject *const *args, Py_ssize_t count);

#endif
