/* What one small message costs, in C: the numbers of a session, and the frames of a stream.
 *
 * Session is the twin of rgpu.session.session.PureSession, whole. Inlet and Outlet are the plain case of a stream's
 * reader and writer: a message that lies whole in the buffer, one that leaves whole; the rest is rgpu.link.framing's.
 * Knows frames, never commands; waits nowhere but in Inlet.look, without the GIL, for as long as it is told. */
#ifndef RGPU_LINK_H
#define RGPU_LINK_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define TYPE(x) Py_TYPE((PyObject *)(x))

extern PyType_Spec session_spec, inlet_spec, outlet_spec, conversation_spec;

#define ANSWER (9 << 20) /* bytes that the window must have room for before an answer is made: a chunk of the nearest link, and more */

double link_now(void);                        /* time.monotonic() */
/* What link_turn.c needs of the others; these are the methods of the same names. */
int link_check(PyObject *session, PyObject *inlet, PyObject *outlet); /* -1: they are not what their names say */
PyObject *link_send(PyObject *session, PyObject *frames);
PyObject *link_receive(PyObject *session, PyObject *frames);
int link_expects(PyObject *session, PyObject *header);
int link_done(PyObject *session);
PyObject *link_due(PyObject *session); /* what it sends by itself now; NULL without an exception: nothing */
int link_can_send(PyObject *session, int64_t nbytes);
PyObject *link_take(PyObject *inlet);
void link_put_back(PyObject *inlet, PyObject *message); /* the one just taken */
int link_give(PyObject *outlet, PyObject *message);     /* what the pipe does not take is kept; -1 with an exception */
int link_found(PyObject *inlet, double patience, int asking);
PyObject *link_take_large(PyObject *session, PyObject *inlet, PyObject *answer, PyObject *place); /* link_large.c */
void link_learn_place(int gave); /* an answer has come, and whether somebody else had this core meanwhile: the peer, if that happens each time */
void link_learn_core(int core);  /* the peer has written on this core; -1: unknown */
PyObject *link_turn(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* What link_exchange.c needs. */
int link_roomy(PyObject *session, int64_t nbytes);     /* whether a message of so many bytes may leave, and the window is not half full */
int link_finish(PyObject *session, PyObject *outlet, PyObject *answer); /* a delivered message is done; -1 with an exception */
int link_torn(PyObject *inlet, PyObject *outlet);      /* whether a message is half in or out */
int link_signs(PyObject *inlet);                       /* whether the peer asks for one */
int link_add_spin(PyObject *module);                   /* link_spin.c; the others are its methods of the same names */
int link_is_spin(PyObject *x);
double link_seconds(PyObject *spin);
double link_near(PyObject *spin);
void link_learn(PyObject *spin, double waited);
int link_names(void);                                  /* once; -1 with an exception */

/* Between these two this thread runs no finalizer for the collector, which before Python 3.12 comes wherever an object is
 * made: one that sends or reads would find half a message. May be nested. */
void link_hold_collector(void);
void link_free_collector(void);
/* Meanwhile the GIL is released, or a worker's own code runs: the collector is what it was. */
void link_rest_collector(void);
void link_resume_collector(void);

int64_t link_total(PyObject *frames);         /* bytes of a list of frames; -1 with an exception */
extern PyObject *link_monotonic;              /* the clock that need not be called */

#endif
