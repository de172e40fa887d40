/* The issue path: what happens between the user's `a + b` and the bytes of a batch.
 *
 * Three types. A Queue holds the commands on their way to one worker, encoded; `rgpu.client.stream` extends it.
 * A Remote is an array's handle, layout and stream; `rgpu.ndarray` extends it. A Quick stands before a Python
 * function: a call whose signature was seen before becomes the bytes that the function sent then, with this
 * call's handles in their places; every other call is the function's. So Python decides what a call means, once a
 * signature, and nothing here knows an operation, a layout's meaning or the wire beyond three encodings of numbers. */
#ifndef RGPU_ISSUE_H
#define RGPU_ISSUE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#ifndef Py_TPFLAGS_HAVE_VECTORCALL /* the stable ABI names it from 3.12 on; it is the same before */
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
typedef PyObject *(*vectorcallfunc)(PyObject *, PyObject *const *, size_t, PyObject *);
#endif

#define TYPE(x) Py_TYPE((PyObject *)(x))
#define KEEP(x) Py_INCREF((PyObject *)(x))

#define ORIGINS 320 /* messages whose lines are remembered: the window, and a little more; as in rgpu.client.queue */
#define SMALL 4096 /* bytes: arrays up to here are freed many in one command, as in rgpu.client.remote */

struct issue {
    PyObject *arm;     /* called when a queue is no longer empty: somebody must look after it */
    PyObject *learn;   /* (arrays, numbers, result) -> how to repeat the call just made, or None */
    PyObject *outside; /* (file name) -> whether it is the user's */
    PyObject *place_of; /* (frame) -> the user's line further out, (code, instruction) or None */
    PyObject *method;  /* types.MethodType */
    PyObject *constants; /* a tuple of objects that are told apart by identity and never change */
    PyTypeObject *array, *remote, *queue, *quick, *places; /* array: the class whose instances are looked at */
    PyObject *name_nbytes, *name_filename, *name_flush_batch, *name_expect;
    descrgetfunc lasti_get;
    PyObject *lasti;
    int (*lasti_of)(PyFrameObject *); /* PyFrame_GetLasti, where this Python offers it; NULL: the descriptor's way */
};
extern struct issue the;

extern uint64_t last_handle; /* of all streams of the process */
extern _Thread_local uint64_t current; /* number of the queue of this thread's current device */

static inline void put_u64(unsigned char *to, uint64_t x)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    x = __builtin_bswap64(x);
    memcpy(to, &x, sizeof x);
#else
    for (int i = 7; i >= 0; i--, x >>= 8)
        to[i] = (unsigned char)x;
#endif
}

typedef struct {
    PyObject *code; /* NULL: nobody knows */
    int instruction;
    size_t end;      /* of the command, in the queue's bytes */
    uint64_t handle; /* the last one given out when it was queued */
} place;

typedef struct {
    uint64_t handle, total; /* total: commands queued when it was freed */
} freed;

/* What a message is made in; its memory is kept for the next one, for fresh pages cost more than what is done in them. */
typedef struct {
    unsigned char *bytes;
    size_t used, room;
    uint64_t items;
} output;

typedef struct Queue {
    PyObject_HEAD
    struct Queue *next; /* of those that were current for some thread */
    unsigned char *bytes;
    size_t used, room;
    place *places;
    size_t count, places_room;
    freed *freed;
    size_t nfreed, freed_room;
    output out;
    uint64_t number, total, replayed; /* total: commands ever queued; replayed: those that left as repetitions */
    uint64_t batch, left;             /* messages numbered, and the commands in them */
    PyObject *origins[ORIGINS];       /* where the commands of the last messages came from, by number */
    Py_ssize_t ripe; /* commands after which a batch leaves */
    char direct, armed, check, dead, replay, listed;
    struct replays *replays;
} Queue;

typedef struct {
    PyObject_HEAD
    uint64_t handle; /* 0: none to be freed */
    PyObject *meta, *stream, *root;
    int64_t offset;
    PyObject *weaks;
    char size; /* 0: not looked at, 1: small, 2: large */
} Remote;

typedef struct entry entry;
typedef struct line line;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow, *dict;
    entry **entries;
    line *lines; /* the last calls by the identity of their arguments, NULL until one is known */
    size_t room, count;
    char numbers, anywhere, itself, here; /* here: no arrays, on the current device */
} Quick;

/* issue_queue.c */
int queue_arm(Queue *q); /* tell that the queue is no longer empty; -1 with an exception */
int out_reserve(output *o, size_t size); /* room for so many bytes more; -1 with an exception */
int out_put(output *o, const void *data, size_t size);
int queue_grow(Queue *q, size_t size); /* room for one more command of so many bytes; not 0: an exception */
void queue_free_handle(Queue *q, uint64_t handle, int small);     /* never raises */
int is_other_queue(PyObject *x);
void queue_list(Queue *q);           /* from now on `queue_numbered` finds it, until it is gone */
Queue *queue_numbered(uint64_t number); /* borrowed, or NULL */
PyObject *find_place(int *instruction); /* the user's line: a new reference to its code, or NULL */
PyObject *users_place(int *instruction); /* the same where it is the caller's and known to be; no Python runs */
extern PyType_Spec queue_spec, places_spec;

/* issue_replay.c */
struct replays *replays_new(void);
void replays_free(struct replays *all);
Py_ssize_t replays_write(struct replays *all, Queue *q, size_t count, int whole); /* into q->out, whose memory may have to be freed after an error as well */

/* issue_quick.c */
PyObject *quick_call(Quick *quick, PyObject *const *args, size_t flags, PyObject *names);
extern PyType_Spec quick_spec;

/* issue_module.c */
char size_of(PyObject *meta); /* 1: small, 2: large */
int remote_more(void);        /* one more that `remote_new` finds */

#define SPARE 64
extern Remote *spare[SPARE]; /* objects of exactly the array class that wait for their next life */
extern int nspare;
extern PyTypeObject *seen_queue;

/* ---- steps of each call, here so that they are no calls themselves ---------------------------- */

/* Whether an object is a queue; all but the first of a process are of one type. */
static inline int is_queue(PyObject *x)
{
    return TYPE(x) == seen_queue || is_other_queue(x);
}

/* Room for one more command of at most `size` bytes. */
static inline unsigned char *command_begin(Queue *q, size_t size)
{
    if ((q->used + size > q->room || q->count == q->places_room) && queue_grow(q, size))
        return NULL;
    return q->bytes + q->used;
}

/* The command is written; takes the reference to the code. */
static inline void command_end(Queue *q, size_t size, PyObject *code, int instruction)
{
    q->used += size;
    q->total++;
    q->places[q->count++] = (place){code, instruction, q->used, last_handle};
}

/* There is an object for the next `remote_new`; -1 with an exception. Any Python may run here. */
static inline int remote_ready(void)
{
    return nspare ? 0 : remote_more();
}

/* A new array object without a content yet, after `remote_ready`: no Python runs. */
static inline Remote *remote_new(void)
{
    Remote *made = spare[--nspare];
    memset((char *)made + offsetof(Remote, handle), 0, sizeof *made - offsetof(Remote, handle));
    PyObject_Init((PyObject *)made, the.array);
    PyObject_GC_Track(made);
    return made;
}

#endif
