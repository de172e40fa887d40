/* The issue path: what happens between the user's `a + b` and the bytes of a batch.
 *
 * Three types. A Queue holds the commands on their way to one worker, encoded; `rgpu.client.stream` extends it.
 * A Remote is an array's handle, layout and stream; `rgpu.ndarray` extends it. A Quick stands before a Python
 * function: a call whose signature was seen before becomes the bytes that the function sent then, with this
 * call's handles in their places; every other call is the function's. So Python decides what a call means, once a
 * signature, and nothing here knows an operation, a layout's meaning or the wire beyond three encodings of numbers. */
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

#define BATCH 512  /* commands after which a batch leaves, as in rgpu.client.stream */
#define SMALL 4096 /* bytes: arrays up to here are freed many in one command, as in rgpu.client.remote */
#define WORDS 48   /* of a signature; longer ones are not remembered */
#define ARRAYS 8
#define NUMBERS 4
#define KEPT 4096 /* signatures of one function: a program that makes endless shapes must not keep them */
#define TRIES 3   /* calls of one signature that may turn out not to be repeatable before nobody asks again */

static struct {
    PyObject *arm;     /* called when a queue is no longer empty: somebody must look after it */
    PyObject *learn;   /* (arrays, numbers, result) -> how to repeat the call just made, or None */
    PyObject *outside; /* (file name) -> whether it is the user's */
    PyObject *place_of; /* (frame) -> the user's line further out, (code, instruction) or None */
    PyObject *method;  /* types.MethodType */
    PyTypeObject *array, *remote, *queue, *quick, *places; /* array: the class whose instances are looked at */
    PyObject *name_nbytes, *name_filename, *name_flush, *name_expect;
    descrgetfunc lasti_get;
    PyObject *lasti;
} the;

static uint64_t last_handle; /* of all streams of the process */
static _Thread_local uint64_t current; /* number of the queue of this thread's current device */

static void put_u64(unsigned char *to, uint64_t x)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    x = __builtin_bswap64(x);
    memcpy(to, &x, sizeof x);
#else
    for (int i = 7; i >= 0; i--, x >>= 8)
        to[i] = (unsigned char)x;
#endif
}

/* ---- the queue ----------------------------------------------------------------------------- */

typedef struct {
    PyObject *code; /* NULL: nobody knows */
    int instruction;
    size_t end; /* of the command, in the queue's bytes */
} place;

typedef struct {
    PyObject_HEAD
    unsigned char *bytes;
    size_t used, room;
    place *places;
    size_t count, places_room;
    uint64_t *freed;
    size_t nfreed, freed_room;
    uint64_t number, total; /* total: commands ever queued */
    char direct, armed, check, dead;
} Queue;

static int grow(void **memory, size_t *room, size_t needed, size_t unit)
{
    if (needed <= *room)
        return 0;
    size_t more = *room * 2 > needed ? *room * 2 : needed + 64;
    void *found = PyMem_Realloc(*memory, more * unit);
    if (!found) {
        PyErr_NoMemory();
        return -1;
    }
    *memory = found;
    *room = more;
    return 0;
}

static int arm(Queue *q)
{
    q->armed = 1;
    PyObject *done = PyObject_CallFunctionObjArgs(the.arm, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Room for one more command of at most `size` bytes. */
static unsigned char *begin(Queue *q, size_t size)
{
    if (grow((void **)&q->bytes, &q->room, q->used + size, 1) ||
        grow((void **)&q->places, &q->places_room, q->count + 1, sizeof(place)))
        return NULL;
    return q->bytes + q->used;
}

/* The command is written; takes the reference to the code. */
static void end(Queue *q, size_t size, PyObject *code, int instruction)
{
    q->used += size;
    q->total++;
    q->places[q->count++] = (place){code, instruction, q->used};
}

static PyObject *queue_add(Queue *q, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    PyObject *code = NULL;
    int instruction = 0;
    if (!PyArg_ParseTuple(args, "y#|Oi:add_packed", &data, &size, &code, &instruction))
        return NULL;
    unsigned char *to = begin(q, (size_t)size);
    if (!to)
        return NULL;
    memcpy(to, data, (size_t)size);
    if (code == Py_None)
        code = NULL;
    Py_XINCREF(code);
    end(q, (size_t)size, code, instruction);
    if (!q->armed && arm(q))
        return NULL;
    Py_RETURN_NONE;
}

#define FREE_HEAD 7 /* the largest head of a Free command: array of 2, tag, array of 2^32 */
#define FREE_TAG 2
#define FREE_MOST 65536

static size_t free_command(unsigned char *to, const uint64_t *handles, size_t count)
{
    unsigned char *at = to;
    *at++ = 0x92;
    *at++ = FREE_TAG;
    *at++ = 0xdd;
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (unsigned char)(count >> shift);
    for (size_t i = 0; i < count; i++, at += 9) {
        *at = 0xcf;
        put_u64(at + 1, handles[i]);
    }
    return (size_t)(at - to);
}

/* What was freed becomes commands: after those that used it, before whoever asks what memory is left. */
static int gather(Queue *q)
{
    for (size_t done = 0; done < q->nfreed;) {
        size_t count = q->nfreed - done < FREE_MOST ? q->nfreed - done : FREE_MOST;
        unsigned char *to = begin(q, FREE_HEAD + 9 * count);
        if (!to)
            return -1;
        end(q, free_command(to, q->freed + done, count), NULL, 0);
        done += count;
    }
    q->nfreed = 0;
    return 0;
}

/* Forget a handle on the worker: never raises, called by destructors in any thread. */
static void queue_free_handle(Queue *q, uint64_t handle, int small)
{
    if (q->dead)
        return;
    if (small && !grow((void **)&q->freed, &q->freed_room, q->nfreed + 1, sizeof(uint64_t))) {
        q->freed[q->nfreed++] = handle;
    } else {
        unsigned char *to = begin(q, FREE_HEAD + 9);
        if (to)
            end(q, free_command(to, &handle, 1), NULL, 0);
        if (!q->armed && to)
            arm(q);
    }
    PyErr_Clear();
}

static PyObject *queue_free(Queue *q, PyObject *handle)
{
    uint64_t number = PyLong_AsUnsignedLongLong(handle);
    if (!PyErr_Occurred())
        queue_free_handle(q, number, 0);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyObject *queue_gather(Queue *q, PyObject *Py_UNUSED(none))
{
    if (gather(q))
        return NULL;
    Py_RETURN_NONE;
}

/* (number of commands, body of a message of them): the first ones of the queue, which stay there. */
static PyObject *queue_peek(Queue *q, PyObject *args)
{
    unsigned long long batch;
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(args, "Kn:peek", &batch, &limit))
        return NULL;
    size_t count = q->count < (size_t)limit ? q->count : (size_t)limit;
    size_t size = count ? q->places[count - 1].end : 0;
    unsigned char head[13] = {0x92, 0xcf};
    put_u64(head + 2, batch);
    head[10] = 0xdc;
    head[11] = (unsigned char)(count >> 8);
    head[12] = (unsigned char)count;
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof head + size));
    if (!body)
        return NULL;
    char *to = PyBytes_AsString(body);
    memcpy(to, head, sizeof head);
    memcpy(to + sizeof head, q->bytes, size);
    return Py_BuildValue("(nN)", (Py_ssize_t)count, body);
}

typedef struct {
    PyObject_HEAD
    place *places;
    Py_ssize_t count;
} Places;

/* Take the first commands away; returns where they came from, by their position. */
static PyObject *queue_drop(Queue *q, PyObject *arg)
{
    Py_ssize_t wanted = PyLong_AsSsize_t(arg);
    if (wanted < 0 || (size_t)wanted > q->count)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "there are %zu commands", q->count);
    size_t count = (size_t)wanted, size = count ? q->places[count - 1].end : 0;
    Places *taken = PyObject_New(Places, the.places);
    if (!taken)
        return NULL;
    taken->count = 0;
    taken->places = PyMem_Malloc((count ? count : 1) * sizeof(place));
    if (!taken->places) {
        Py_DECREF(taken);
        return PyErr_NoMemory();
    }
    memcpy(taken->places, q->places, count * sizeof(place));
    taken->count = wanted;
    q->count -= count;
    q->used -= size;
    memmove(q->places, q->places + count, q->count * sizeof(place));
    memmove(q->bytes, q->bytes + size, q->used);
    for (size_t i = 0; i < q->count; i++)
        q->places[i].end -= size;
    return (PyObject *)taken;
}

static void places_dealloc(Places *self)
{
    PyTypeObject *type = TYPE(self);
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_XDECREF(self->places[i].code);
    PyMem_Free(self->places);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t places_length(Places *self)
{
    return self->count;
}

static PyObject *places_item(Places *self, Py_ssize_t i)
{
    if (i < 0 || i >= self->count)
        return PyErr_Format(PyExc_IndexError, "there are %zd commands", self->count);
    place *found = &self->places[i];
    if (!found->code)
        Py_RETURN_NONE;
    return Py_BuildValue("(Oi)", found->code, found->instruction);
}

static PyType_Slot places_slots[] = {
    {Py_tp_dealloc, places_dealloc},
    {Py_sq_length, places_length},
    {Py_sq_item, places_item},
    {0, NULL},
};
static PyType_Spec places_spec = {"rgpu._rgpu_issue.Places", sizeof(Places), 0, Py_TPFLAGS_DEFAULT, places_slots};

/* Whether an object is a queue; all but the first of a process are of one type. */
static int is_queue(PyObject *x)
{
    static PyTypeObject *seen;
    if (TYPE(x) == seen)
        return 1;
    if (!PyObject_TypeCheck(x, the.queue))
        return 0;
    KEEP(TYPE(x));
    PyTypeObject *before = seen;
    seen = TYPE(x);
    Py_XDECREF((PyObject *)before);
    return 1;
}

static PyObject *queue_unsent(Queue *q, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(q->count + (q->nfreed > 0));
}

static PyObject *queue_refuse(Queue *q, PyObject *Py_UNUSED(none))
{
    q->dead = 1;
    q->direct = 0;
    q->nfreed = q->freed_room = 0;
    PyMem_Free(q->freed);
    q->freed = NULL;
    Py_RETURN_NONE;
}

static void queue_dealloc(Queue *q)
{
    PyTypeObject *type = TYPE(q);
    for (size_t i = 0; i < q->count; i++)
        Py_XDECREF(q->places[i].code);
    PyMem_Free(q->places);
    PyMem_Free(q->bytes);
    PyMem_Free(q->freed);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(q);
    Py_DECREF(type);
}

static PyMethodDef queue_methods[] = {
    {"add_packed", (PyCFunction)queue_add, METH_VARARGS, "Queue an encoded command, issued at (code, instruction)."},
    {"free", (PyCFunction)queue_free, METH_O, "Forget a handle on the worker. Never raises."},
    {"gather", (PyCFunction)queue_gather, METH_NOARGS, "Make commands of what was freed."},
    {"peek", (PyCFunction)queue_peek, METH_VARARGS, "(batch, limit) -> (count, body of a message of them)."},
    {"drop", (PyCFunction)queue_drop, METH_O, "Take the first commands away -> where they came from."},
    {"refuse", (PyCFunction)queue_refuse, METH_NOARGS, "Nothing enters directly from now on; frees are ignored."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef queue_members[] = {
    {"direct", T_BOOL, offsetof(Queue, direct), 0, "whether commands may enter without their stream's methods"},
    {"armed", T_BOOL, offsetof(Queue, armed), 0, "whether somebody was told that the queue is not empty"},
    {"check", T_BOOL, offsetof(Queue, check), 0, "whether each result's layout is sent to be compared"},
    {"number", T_ULONGLONG, offsetof(Queue, number), 0, "different from every other stream's"},
    {"total", T_ULONGLONG, offsetof(Queue, total), READONLY, "commands queued so far"},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef queue_getset[] = {
    {"unsent", (getter)queue_unsent, NULL, "how many commands wait to leave", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot queue_slots[] = {
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_methods, queue_methods},
    {Py_tp_members, queue_members},
    {Py_tp_getset, queue_getset},
    {0, NULL},
};
static PyType_Spec queue_spec = {
    "rgpu._rgpu_issue.Queue", sizeof(Queue), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, queue_slots,
};

/* ---- the user's line ----------------------------------------------------------------------- */

#define CODES 256

static struct {
    PyObject *code;
    char outside;
} codes[CODES]; /* whose files were looked at */

static int is_outside(PyObject *code)
{
    size_t at = ((uintptr_t)code >> 4) % CODES;
    if (codes[at].code == code)
        return codes[at].outside;
    PyObject *name = PyObject_GetAttr(code, the.name_filename);
    PyObject *found = name ? PyObject_CallFunctionObjArgs(the.outside, name, NULL) : NULL;
    Py_XDECREF(name);
    if (!found)
        return -1;
    int outside = PyObject_IsTrue(found);
    Py_DECREF(found);
    if (outside >= 0) {
        Py_INCREF(code);
        PyObject *before = codes[at].code;
        codes[at].code = code;
        codes[at].outside = (char)outside;
        Py_XDECREF(before);
    }
    return outside;
}

/* A new reference to the code of the user's innermost line, and its instruction there; NULL: unknown. Python
 * runs where a file is met for the first time, or the line is not the caller's. */
static PyObject *find_place(int *instruction)
{
    *instruction = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    if (!frame)
        return NULL;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame), *where = NULL;
    int outside = is_outside(code);
    if (outside > 0) {
        where = the.lasti_get(the.lasti, (PyObject *)frame, (PyObject *)TYPE(frame));
    } else {
        Py_CLEAR(code);
        PyObject *found = outside < 0 ? NULL : PyObject_CallFunctionObjArgs(the.place_of, frame, NULL);
        if (found && PyTuple_Check(found) && PyTuple_Size(found) == 2) {
            code = PyTuple_GetItem(found, 0);
            where = PyTuple_GetItem(found, 1);
            Py_INCREF(code);
            Py_INCREF(where);
        }
        Py_XDECREF(found);
    }
    if (where) {
        *instruction = (int)PyLong_AsLong(where);
        Py_DECREF(where);
    } else
        PyErr_Clear(); /* a line that nobody can name stops no command */
    return code;
}

/* ---- arrays -------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    uint64_t handle; /* 0: none to be freed */
    PyObject *meta, *stream, *root;
    int64_t offset;
    PyObject *weaks;
    char size; /* 0: not looked at, 1: small, 2: large */
} Remote;

static char size_of(PyObject *meta)
{
    PyObject *nbytes = meta ? PyObject_GetAttr(meta, the.name_nbytes) : NULL;
    long long size = nbytes ? PyLong_AsLongLong(nbytes) : 0;
    Py_XDECREF(nbytes);
    PyErr_Clear();
    return size <= SMALL ? 1 : 2;
}

/* The worker may forget the array. Keeps the error that the program may be in the middle of. */
static void give_back(Remote *self)
{
    Queue *q = (Queue *)self->stream;
    if (self->size == 1 && q->nfreed < q->freed_room) {
        q->freed[q->nfreed++] = self->handle;
        return;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    queue_free_handle(q, self->handle, (self->size ? self->size : size_of(self->meta)) == 1);
    PyErr_Restore(kind, value, trace);
}

static void remote_dealloc(Remote *self)
{
    PyTypeObject *type = TYPE(self);
    if (self->weaks)
        PyObject_ClearWeakRefs((PyObject *)self);
    if (self->handle && self->stream && is_queue(self->stream))
        give_back(self);
    Py_XDECREF(self->meta);
    Py_XDECREF(self->stream);
    Py_XDECREF(self->root);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* An array itself is in no cycle and unknown to the collector; one of a subclass with attributes may be. */
static int remote_traverse(Remote *self, visitproc visit, void *arg)
{
    Py_VISIT(self->meta);
    Py_VISIT(self->stream);
    Py_VISIT(self->root);
    return 0;
}

static int remote_clear(Remote *self)
{
    Py_CLEAR(self->root);
    return 0;
}

/* ---- signatures and what they make --------------------------------------------------------- */

/* What of a call decides its result: words, which compare as a whole, and what the call's bytes need. */
typedef struct {
    uint64_t words[WORDS];
    PyObject *kept[WORDS]; /* whose addresses are among the words */
    Remote *arrays[ARRAYS];
    PyObject *numbers[NUMBERS];
    int nwords, nkept, narrays, nnumbers;
} signature;

enum { OUT, HANDLE, ROOT, OFFSET, NUMBER }; /* what stands in a hole: 9 bytes, the encoding's mark and 8 more */

typedef struct {
    uint32_t at;
    uint8_t kind, index;
} hole;

enum { UNKNOWN, NOTHING, ITSELF, FRESH, VIEW }; /* what the call returns */

typedef struct {
    uint64_t hash;
    uint64_t *words;
    hole *holes;
    unsigned char *bytes;
    PyObject *meta, *keep;
    int64_t offset; /* of a view in its array */
    size_t size;
    int nwords, nholes;
    uint8_t returns, small, tries, inside; /* inside: a view with elements, whose offset means something */
} entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *slow, *dict;
    entry **entries;
    size_t room, count;
    char numbers, anywhere, itself;
} Quick;

#define WORD(x)                                                                                        \
    do {                                                                                               \
        if (s->nwords == WORDS)                                                                        \
            return -1;                                                                                 \
        s->words[s->nwords++] = (uint64_t)(x);                                                         \
    } while (0)

/* An address among the words: its object must live as long as they are compared. The low bits tell the kinds. */
#define IS_META 1
#define IS_OBJECT 2
#define IS_INT 3
#define IS_TUPLE 4
#define IS_SLICE 5
#define IS_SAME 6
#define IS_NUMBER 7

static int sign_object(signature *s, PyObject *x, unsigned kind)
{
    WORD((uintptr_t)x | kind);
    if (s->nkept == WORDS)
        return -1;
    s->kept[s->nkept++] = x;
    return 0;
}

static int sign_int(signature *s, PyObject *x)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (overflow)
        return -1;
    WORD(IS_INT);
    WORD(value);
    return 0;
}

static int sign_slice(signature *s, PyObject *x)
{
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(x, &start, &stop, &step)) {
        PyErr_Clear();
        return -1;
    }
    WORD(IS_SLICE);
    WORD(start);
    WORD(stop);
    WORD(step);
    return 0;
}

static int sign_array(signature *s, Remote *x)
{
    for (int i = 0; i < s->narrays; i++)
        if (s->arrays[i] == x) {
            WORD(IS_SAME | (unsigned)i << 4);
            return 0;
        }
    if (s->narrays == ARRAYS || !x->meta || !x->stream || x->stream != (s->narrays ? s->arrays[0]->stream : x->stream))
        return -1;
    s->arrays[s->narrays++] = x;
    return sign_object(s, x->meta, IS_META);
}

/* Adds what an argument says; -1 where it is one that has to be looked at each time. */
static int sign(signature *s, PyObject *x, const Quick *quick, int depth)
{
    PyTypeObject *type = Py_TYPE(x);
    if (type == the.array)
        return sign_array(s, (Remote *)x);
    if (PyLong_CheckExact(x)) {
        if (!quick->numbers)
            return sign_int(s, x);
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
        if (value < INT32_MIN || value > INT32_MAX || overflow || s->nnumbers == NUMBERS)
            return -1; /* whether a dtype holds it is asked each time */
        s->numbers[s->nnumbers++] = x;
        WORD(IS_NUMBER | (value < 0 || value > 127 ? 2 : 1) << 4); /* every dtype holds the small ones */
        return 0;
    }
    if (PyFloat_CheckExact(x)) {
        if (s->nnumbers == NUMBERS)
            return -1;
        s->numbers[s->nnumbers++] = x; /* its value never decides a layout */
        WORD(IS_NUMBER);
        return 0;
    }
    if (x == Py_None || x == Py_True || x == Py_False || x == Py_Ellipsis) {
        WORD((uintptr_t)x | IS_OBJECT);
        return 0;
    }
    if (type == &PySlice_Type)
        return sign_slice(s, x);
    if (PyTuple_CheckExact(x) && depth < 3) {
        Py_ssize_t size = PyTuple_Size(x);
        WORD(IS_TUPLE | (uint64_t)size << 4);
        for (Py_ssize_t i = 0; i < size; i++)
            if (sign(s, PyTuple_GetItem(x, i), quick, depth + 1))
                return -1;
        return 0;
    }
    if (PyUnicode_CheckExact(x) || (quick->itself && !depth && !s->nwords) || PyType_Check(x))
        return sign_object(s, x, IS_OBJECT);
    return -1;
}

static int sign_call(signature *s, const Quick *quick, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    s->nwords = s->nkept = s->narrays = s->nnumbers = 0;
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < nargs; i++)
        if (sign(s, args[i], quick, 0))
            return -1;
    for (Py_ssize_t i = 0; i < named; i++)
        if (sign_object(s, PyTuple_GetItem(names, i), IS_TUPLE) || sign(s, args[nargs + i], quick, 0))
            return -1;
    if (!s->narrays || !is_queue(s->arrays[0]->stream))
        return -1;
    WORD(((Queue *)s->arrays[0]->stream)->number);
    return 0;
}

static uint64_t hash_of(const signature *s)
{
    uint64_t hash = (uint64_t)s->nwords;
    for (int i = 0; i < s->nwords; i++) {
        hash = (hash ^ s->words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* The place of a signature: the entry's, or the free one where it belongs. */
static entry **find(const Quick *quick, const signature *s, uint64_t hash)
{
    size_t mask = quick->room - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        entry *e = quick->entries[at];
        if (!e || (e->hash == hash && e->nwords == s->nwords &&
                   !memcmp(e->words, s->words, (size_t)s->nwords * sizeof(uint64_t))))
            return &quick->entries[at];
    }
}

static void entry_free(entry *e)
{
    Py_XDECREF(e->meta);
    Py_XDECREF(e->keep);
    PyMem_Free(e->words);
    PyMem_Free(e->holes);
    PyMem_Free(e->bytes);
    PyMem_Free(e);
}

static void forget(Quick *quick)
{
    entry **entries = quick->entries;
    size_t room = quick->room;
    quick->entries = NULL;
    quick->room = quick->count = 0;
    for (size_t i = 0; i < room; i++)
        if (entries[i])
            entry_free(entries[i]);
    PyMem_Free(entries);
}

/* A place for one more entry; NULL without memory. */
static entry **place_for(Quick *quick, const signature *s, uint64_t hash)
{
    if (quick->count >= KEPT)
        forget(quick);
    if (quick->count * 2 >= quick->room) {
        size_t room = quick->room ? quick->room * 4 : 16, before = quick->room;
        entry **old = quick->entries, **more = PyMem_Calloc(room, sizeof *more);
        if (!more)
            return NULL;
        for (size_t i = 0; i < before; i++)
            if (old[i]) {
                size_t at = old[i]->hash & (room - 1);
                while (more[at])
                    at = (at + 1) & (room - 1);
                more[at] = old[i];
            }
        quick->entries = more;
        quick->room = room;
        PyMem_Free(old);
    }
    return find(quick, s, hash);
}

/* ---- a call that was seen before ----------------------------------------------------------- */

/* The array whose memory it is. */
static Remote *root_of(Remote *array)
{
    return array->root && array->root != Py_None && PyObject_TypeCheck(array->root, the.remote) ? (Remote *)array->root
                                                                                                : array;
}

static void fill(unsigned char *to, const entry *e, const signature *s, uint64_t out)
{
    memcpy(to, e->bytes, e->size);
    for (int i = 0; i < e->nholes; i++) {
        const hole *h = &e->holes[i];
        unsigned char *at = to + h->at;
        switch (h->kind) {
        case OUT: put_u64(at + 1, out); break;
        case HANDLE: put_u64(at + 1, s->arrays[h->index]->handle); break;
        case ROOT: put_u64(at + 1, root_of(s->arrays[h->index])->handle); break;
        case OFFSET:
            *at = 0xd3;
            put_u64(at + 1, (uint64_t)(s->arrays[h->index]->offset + e->offset));
            break;
        case NUMBER:
            if (PyFloat_CheckExact(s->numbers[h->index])) {
                double value = PyFloat_AsDouble(s->numbers[h->index]);
                uint64_t bits;
                memcpy(&bits, &value, sizeof bits);
                *at = 0xcb;
                put_u64(at + 1, bits);
            } else {
                *at = 0xd3;
                put_u64(at + 1, (uint64_t)PyLong_AsLongLong(s->numbers[h->index]));
            }
        }
    }
}

static PyObject *result_of(const entry *e, const signature *s, Queue *q, uint64_t out)
{
    if (e->returns == NOTHING)
        Py_RETURN_NONE;
    if (e->returns == ITSELF) {
        KEEP(s->arrays[0]);
        return (PyObject *)s->arrays[0];
    }
    static allocfunc alloc;
    if (!alloc)
        alloc = (allocfunc)PyType_GetSlot(the.array, Py_tp_alloc);
    Remote *made = (Remote *)alloc(the.array, 0);
    if (!made)
        return NULL;
    made->handle = out;
    made->size = (char)e->small;
    made->meta = e->meta;
    made->stream = (PyObject *)q;
    Py_INCREF(made->meta);
    Py_INCREF(made->stream);
    if (e->returns == VIEW) {
        Remote *array = s->arrays[0];
        made->root = (PyObject *)root_of(array);
        made->offset = e->inside ? array->offset + e->offset : 0;
        Py_INCREF(made->root);
    }
    return (PyObject *)made;
}

static int call_method(Queue *q, PyObject *name, PyObject *arg)
{
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)q, name, arg, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Queue the call's command; its result, or NULL with an error. No Python runs before the command is whole. */
static PyObject *repeat(const entry *e, const signature *s, Queue *q, PyObject *code, int instruction)
{
    unsigned char *to = begin(q, e->size);
    uint64_t out = e->returns >= FRESH ? ++last_handle : 0;
    PyObject *result = to ? result_of(e, s, q, out) : NULL;
    if (!result) {
        Py_XDECREF(code);
        return NULL;
    }
    fill(to, e, s, out);
    end(q, e->size, code, instruction);
    if (q->armed && q->count < BATCH && !q->check)
        return result;
    if ((!q->armed && arm(q)) || (q->check && out && call_method(q, the.name_expect, result)) ||
        (q->count >= BATCH && call_method(q, the.name_flush, NULL)))
        Py_CLEAR(result);
    return result;
}

/* ---- a call that was not ------------------------------------------------------------------- */

static PyObject *call_slow(PyObject *slow, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *positional = PyTuple_New(nargs), *named = NULL, *result = NULL;
    if (!positional)
        return NULL;
    for (Py_ssize_t i = 0; i < nargs; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(positional, i, args[i]);
    }
    if (names && PyTuple_Size(names)) {
        named = PyDict_New();
        for (Py_ssize_t i = 0; named && i < PyTuple_Size(names); i++)
            if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[nargs + i]))
                Py_CLEAR(named);
        if (!named)
            goto done;
    }
    result = PyObject_Call(slow, positional, named);
done:
    Py_DECREF(positional);
    Py_XDECREF(named);
    return result;
}

static PyObject *list_of(PyObject *const *items, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list && i < count; i++) {
        Py_INCREF(items[i]);
        PyList_SetItem(list, i, items[i]);
    }
    return list;
}

/* Copies what `learn` said: (bytes, ((position, kind, index), ...), returns, layout, offset, inside). */
static int take_lesson(entry *e, PyObject *lesson)
{
    const char *bytes;
    Py_ssize_t size;
    PyObject *holes, *meta;
    long long offset;
    int returns, inside;
    if (!PyArg_ParseTuple(lesson, "y#O!iOLp", &bytes, &size, &PyTuple_Type, &holes, &returns, &meta, &offset, &inside))
        return -1;
    Py_ssize_t count = PyTuple_Size(holes);
    hole *found = PyMem_Calloc((size_t)count + 1, sizeof *found);
    unsigned char *copy = PyMem_Malloc((size_t)size + 1);
    for (Py_ssize_t i = 0; found && copy && i < count; i++) {
        unsigned at, kind, index;
        if (!PyArg_ParseTuple(PyTuple_GetItem(holes, i), "III", &at, &kind, &index) || at + 9 > (size_t)size ||
            index >= (kind == NUMBER ? NUMBERS : ARRAYS))
            break;
        found[i] = (hole){at, (uint8_t)kind, (uint8_t)index};
        e->nholes++;
    }
    if (!found || !copy || e->nholes < count) {
        PyMem_Free(found);
        PyMem_Free(copy);
        e->nholes = 0;
        return -1;
    }
    memcpy(copy, bytes, (size_t)size);
    Py_INCREF(meta);
    e->holes = found;
    e->bytes = copy;
    e->size = (size_t)size;
    e->meta = meta;
    e->offset = offset;
    e->inside = (uint8_t)inside;
    e->small = (uint8_t)(returns >= FRESH ? size_of(meta) : 1);
    e->returns = (uint8_t)returns;
    return 0;
}

/* Ask how to repeat a call that was just made, and remember it. Errors are nobody's: the call has succeeded. */
static void learn(Quick *quick, const signature *s, PyObject *result)
{
    uint64_t hash = hash_of(s);
    entry **at = place_for(quick, s, hash), *e = at ? *at : NULL;
    if (!at)
        return;
    if (!e) {
        e = PyMem_Calloc(1, sizeof *e);
        if (!e || !(e->words = PyMem_Malloc((size_t)s->nwords * sizeof(uint64_t)))) {
            PyMem_Free(e);
            return;
        }
        memcpy(e->words, s->words, (size_t)s->nwords * sizeof(uint64_t));
        e->nwords = s->nwords;
        e->hash = hash;
        e->keep = list_of(s->kept, s->nkept);
        *at = e;
        quick->count++;
    }
    if (!e->keep || e->returns != UNKNOWN || ++e->tries > TRIES)
        return;
    PyObject *arrays = list_of((PyObject *const *)s->arrays, s->narrays);
    PyObject *numbers = list_of(s->numbers, s->nnumbers);
    PyObject *lesson =
        arrays && numbers ? PyObject_CallFunctionObjArgs(the.learn, arrays, numbers, result, NULL) : NULL;
    Py_XDECREF(arrays);
    Py_XDECREF(numbers);
    entry **still = quick->room ? find(quick, s, hash) : NULL; /* Python ran: others may have been here */
    if (lesson && lesson != Py_None && still && *still == e && e->returns == UNKNOWN)
        take_lesson(e, lesson);
    Py_XDECREF(lesson);
    PyErr_Clear();
}

static PyObject *quick_call(Quick *quick, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t nargs = (Py_ssize_t)(flags & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    signature s;
    if (sign_call(&s, quick, args, nargs, names))
        return call_slow(quick->slow, args, nargs, names);
    Queue *q = (Queue *)s.arrays[0]->stream;
    if (!q->direct || (q->number != current && !quick->anywhere))
        return call_slow(quick->slow, args, nargs, names);
    if (quick->count) {
        int instruction;
        PyObject *code = find_place(&instruction);
        entry *e = quick->count ? *find(quick, &s, hash_of(&s)) : NULL;
        if (e && e->returns != UNKNOWN)
            return repeat(e, &s, q, code, instruction);
        Py_XDECREF(code);
    }
    uint64_t before = q->total;
    KEEP(q);
    PyObject *result = call_slow(quick->slow, args, nargs, names);
    /* The arguments are alive, but what they are may have changed: their signature is made anew. */
    if (result && q->total == before + 1 + (q->check ? 1 : 0) && !sign_call(&s, quick, args, nargs, names))
        learn(quick, &s, result);
    Py_DECREF((PyObject *)q);
    return result;
}

static PyObject *quick_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    if (!object || object == Py_None) {
        Py_INCREF(self);
        return self;
    }
    return PyObject_CallFunctionObjArgs(the.method, self, object, NULL);
}

static PyObject *quick_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *words[] = {"slow", "numbers", "anywhere", "itself", NULL};
    PyObject *slow;
    int numbers = 0, anywhere = 0, itself = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|ppp:Quick", words, &slow, &numbers, &anywhere, &itself))
        return NULL;
    Quick *quick = (Quick *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!quick)
        return NULL;
    Py_INCREF(slow);
    quick->slow = slow;
    quick->call = (vectorcallfunc)quick_call;
    quick->numbers = (char)numbers;
    quick->anywhere = (char)anywhere;
    quick->itself = (char)itself;
    return (PyObject *)quick;
}

static PyObject *quick_tp_call(PyObject *self, PyObject *args, PyObject *named)
{ /* whoever does not know vectorcall; nothing here is fast */
    return PyObject_Call(((Quick *)self)->slow, args, named);
}

static void quick_dealloc(Quick *quick)
{
    PyTypeObject *type = TYPE(quick);
    forget(quick);
    Py_XDECREF(quick->slow);
    Py_XDECREF(quick->dict);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(quick);
    Py_DECREF(type);
}

static PyObject *quick_reduce(Quick *quick, PyObject *Py_UNUSED(none))
{
    return PyObject_GetAttrString((PyObject *)quick, "__qualname__"); /* by name, as functions are */
}

static PyObject *quick_known(Quick *quick, void *Py_UNUSED(closure))
{
    size_t known = 0;
    for (size_t i = 0; i < quick->room; i++)
        known += quick->entries[i] && quick->entries[i]->returns != UNKNOWN;
    return PyLong_FromSize_t(known);
}

static PyMethodDef quick_methods[] = {
    {"__reduce__", (PyCFunction)quick_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef quick_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Quick, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Quick, dict), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef quick_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"known", (getter)quick_known, NULL, "how many signatures are repeated without asking", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot quick_slots[] = {
    {Py_tp_new, quick_new},         {Py_tp_dealloc, quick_dealloc}, {Py_tp_call, quick_tp_call},
    {Py_tp_descr_get, quick_get},   {Py_tp_methods, quick_methods}, {Py_tp_members, quick_members},
    {Py_tp_getset, quick_getset},   {0, NULL},
};
static PyType_Spec quick_spec = {
    "rgpu._rgpu_issue.Quick", sizeof(Quick), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, quick_slots,
};

/* ---- operators: slots of the array type, each a Quick that Python has set ------------------- */

#define BINARY(X)                                                                                      \
    X(add) X(sub) X(mul) X(truediv) X(floordiv) X(mod) X(and) X(or) X(xor) X(lshift) X(rshift) X(matmul) X(divmod)
#define INPLACE(X)                                                                                     \
    X(iadd) X(isub) X(imul) X(itruediv) X(ifloordiv) X(imod) X(iand) X(ior) X(ixor) X(ilshift) X(irshift)
#define UNARY(X) X(neg) X(pos) X(invert) X(abs)
#define NAME(name) OP_##name,
enum { BINARY(NAME) INPLACE(NAME) UNARY(NAME) OP_pow, OP_ipow, OP_getitem, OP_lt, OP_le, OP_eq, OP_ne, OP_gt, OP_ge, OPS };
#define TEXT(name) #name,
static const char *const op_names[] = {
    BINARY(TEXT) INPLACE(TEXT) UNARY(TEXT) "pow", "ipow", "getitem", "lt", "le", "eq", "ne", "gt", "ge"};
static Quick *operators[OPS];

static PyObject *operate(int op, PyObject *a, PyObject *b)
{
    PyObject *args[2] = {a, b};
    if (operators[op])
        return quick_call(operators[op], args, b ? 2 : 1, NULL);
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

#define DEFINE2(name)                                                                                  \
    static PyObject *do_##name(PyObject *a, PyObject *b)                                               \
    {                                                                                                  \
        return operate(OP_##name, a, b);                                                               \
    }
#define DEFINE1(name)                                                                                  \
    static PyObject *do_##name(PyObject *a)                                                            \
    {                                                                                                  \
        return operate(OP_##name, a, NULL);                                                            \
    }
BINARY(DEFINE2)
INPLACE(DEFINE2)
UNARY(DEFINE1)
DEFINE2(getitem)

static PyObject *do_pow(PyObject *a, PyObject *b, PyObject *modulus)
{
    if (modulus == Py_None)
        return operate(OP_pow, a, b);
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

static PyObject *do_ipow(PyObject *a, PyObject *b, PyObject *Py_UNUSED(modulus))
{
    return operate(OP_ipow, a, b);
}

static PyObject *do_compare(PyObject *a, PyObject *b, int how)
{
    static const int ops[] = {OP_lt, OP_le, OP_eq, OP_ne, OP_gt, OP_ge}; /* in the order of Py_LT ... Py_GE */
    return operate(ops[how], a, b);
}

static PyMemberDef remote_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Remote, weaks), READONLY, NULL},
    {"_handle", T_ULONGLONG, offsetof(Remote, handle), 0, NULL},
    {"_meta", T_OBJECT_EX, offsetof(Remote, meta), 0, NULL},
    {"_stream", T_OBJECT_EX, offsetof(Remote, stream), 0, NULL},
    {"_root", T_OBJECT, offsetof(Remote, root), 0, NULL},
    {"_offset", T_LONGLONG, offsetof(Remote, offset), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot remote_slots[] = {
    {Py_tp_dealloc, remote_dealloc},
    {Py_tp_traverse, remote_traverse},
    {Py_tp_clear, remote_clear},
    {Py_tp_members, remote_members},
    {Py_tp_richcompare, do_compare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_mp_subscript, do_getitem},
    {Py_nb_add, do_add},
    {Py_nb_subtract, do_sub},
    {Py_nb_multiply, do_mul},
    {Py_nb_true_divide, do_truediv},
    {Py_nb_floor_divide, do_floordiv},
    {Py_nb_remainder, do_mod},
    {Py_nb_divmod, do_divmod},
    {Py_nb_power, do_pow},
    {Py_nb_and, do_and},
    {Py_nb_or, do_or},
    {Py_nb_xor, do_xor},
    {Py_nb_lshift, do_lshift},
    {Py_nb_rshift, do_rshift},
    {Py_nb_matrix_multiply, do_matmul},
    {Py_nb_inplace_add, do_iadd},
    {Py_nb_inplace_subtract, do_isub},
    {Py_nb_inplace_multiply, do_imul},
    {Py_nb_inplace_true_divide, do_itruediv},
    {Py_nb_inplace_floor_divide, do_ifloordiv},
    {Py_nb_inplace_remainder, do_imod},
    {Py_nb_inplace_power, do_ipow},
    {Py_nb_inplace_and, do_iand},
    {Py_nb_inplace_or, do_ior},
    {Py_nb_inplace_xor, do_ixor},
    {Py_nb_inplace_lshift, do_ilshift},
    {Py_nb_inplace_rshift, do_irshift},
    {Py_nb_negative, do_neg},
    {Py_nb_positive, do_pos},
    {Py_nb_invert, do_invert},
    {Py_nb_absolute, do_abs},
    {0, NULL},
};
static PyType_Spec remote_spec = {
    "rgpu._rgpu_issue.Remote", sizeof(Remote), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, remote_slots,
};

/* ---- the module ---------------------------------------------------------------------------- */

static PyObject *set_operator(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *name;
    Quick *quick;
    if (!PyArg_ParseTuple(args, "sO!:set_operator", &name, the.quick, &quick))
        return NULL;
    for (int op = 0; op < OPS; op++)
        if (!strcmp(name, op_names[op])) {
            KEEP(quick);
            Quick *before = operators[op];
            operators[op] = quick;
            Py_XDECREF((PyObject *)before);
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "no operator %s", name);
}

static PyObject *next_handle(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLongLong(++last_handle);
}

static PyObject *set_current(PyObject *Py_UNUSED(module), PyObject *number)
{
    current = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named)
{
    static char *words[] = {"arm", "learn", "outside", "place_of", "array", NULL};
    PyObject *arm = NULL, *learn = NULL, *outside = NULL, *place_of = NULL, *array = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|OOOOO!:configure", words, &arm, &learn, &outside, &place_of,
                                     &PyType_Type, &array))
        return NULL;
    PyObject **targets[] = {&the.arm, &the.learn, &the.outside, &the.place_of, (PyObject **)&the.array};
    PyObject *given[] = {arm, learn, outside, place_of, array};
    for (int i = 0; i < 5; i++)
        if (given[i]) {
            PyObject *before = *targets[i];
            Py_INCREF(given[i]);
            *targets[i] = given[i];
            Py_XDECREF(before);
        }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"next_handle", next_handle, METH_NOARGS, "A handle that no other array of the process has."},
    {"set_current", set_current, METH_O, "The number of the queue of this thread's current device (0: none)."},
    {"set_operator", set_operator, METH_VARARGS, "(name, Quick): what the array type's operator calls."},
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "What of Python is called: arm(), learn(arrays, numbers, result), outside(file), place_of(frame); the array class."},
    {NULL, NULL, 0, NULL},
};

/* f_lasti by its descriptor: the stable ABI has no function for it. */
static int find_lasti(void)
{
    PyObject *types = PyImport_ImportModule("types");
    PyObject *frame = types ? PyObject_GetAttrString(types, "FrameType") : NULL;
    the.method = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    the.lasti = frame ? PyObject_GetAttrString(frame, "f_lasti") : NULL;
    if (the.lasti)
        the.lasti_get = (descrgetfunc)PyType_GetSlot(Py_TYPE(the.lasti), Py_tp_descr_get);
    Py_XDECREF(frame);
    Py_XDECREF(types);
    return the.lasti && the.method && the.lasti_get ? 0 : -1;
}

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*type)
        return -1;
    KEEP(*type);
    return PyModule_AddObject(module, name, (PyObject *)*type);
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rgpu._rgpu_issue", "The issue path in C; see rgpu._core.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rgpu_issue(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    the.name_nbytes = PyUnicode_InternFromString("nbytes");
    the.name_filename = PyUnicode_InternFromString("co_filename");
    the.name_flush = PyUnicode_InternFromString("flush");
    the.name_expect = PyUnicode_InternFromString("expect");
    if (find_lasti() || add_type(module, &places_spec, "Places", &the.places) ||
        add_type(module, &queue_spec, "Queue", &the.queue) || add_type(module, &quick_spec, "Quick", &the.quick) ||
        add_type(module, &remote_spec, "Remote", &the.remote)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
