/* The queue of a stream: commands in their wire form, and the lines of the user's program that they came from. */
#include "issue.h"

/* ---- the queue ----------------------------------------------------------------------------- */

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

PyTypeObject *seen_queue;

int is_other_queue(PyObject *x)
{
    if (!PyObject_TypeCheck(x, the.queue))
        return 0;
    KEEP(TYPE(x));
    PyTypeObject *before = seen_queue;
    seen_queue = TYPE(x);
    Py_XDECREF((PyObject *)before);
    return 1;
}

int queue_grow(Queue *q, size_t size)
{
    return grow((void **)&q->bytes, &q->room, q->used + size, 1) ||
           grow((void **)&q->places, &q->places_room, q->count + 1, sizeof(place));
}

int queue_arm(Queue *q)
{
    q->armed = 1;
    PyObject *done = PyObject_CallFunctionObjArgs(the.arm, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *queue_add(Queue *q, PyObject *args)
{
    const char *data;
    Py_ssize_t size;
    PyObject *code = NULL;
    int instruction = 0;
    if (!PyArg_ParseTuple(args, "y#|Oi:add_packed", &data, &size, &code, &instruction))
        return NULL;
    unsigned char *to = command_begin(q, (size_t)size);
    if (!to)
        return NULL;
    memcpy(to, data, (size_t)size);
    if (code == Py_None)
        code = NULL;
    Py_XINCREF(code);
    command_end(q, (size_t)size, code, instruction);
    if (!q->armed && queue_arm(q))
        return NULL;
    Py_RETURN_NONE;
}

#define FREE_HEAD 7 /* the largest head of a Free command: array of 2, tag, array of 2^32 */
#define FREE_TAG 2
#define FREE_MOST 65536
#define KEPT (1 << 20) /* bytes that are kept for the next message, at most */

/* `to` has room for nine bytes a handle. */
static size_t free_command(unsigned char *to, const freed *handles, size_t count)
{
    unsigned char *at = to;
    *at++ = 0x92;
    *at++ = FREE_TAG;
    *at++ = 0xdd;
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (unsigned char)(count >> shift);
    for (size_t i = 0; i < count; i++) { /* most of a message may be these: on another core's side each line of it is far away */
        uint64_t handle = handles[i].handle;
        size_t size = handle >> 32 ? 8 : 4;
        *at = size == 8 ? 0xcf : 0xce;
        put_u64(at + 1, handle << (64 - 8 * size));
        at += 1 + size;
    }
    return (size_t)(at - to);
}

/* What was freed first becomes commands: after those that used it, before whoever asks what memory is left. */
static int gather(Queue *q, size_t wanted)
{
    for (size_t done = 0; done < wanted;) {
        size_t count = wanted - done < FREE_MOST ? wanted - done : FREE_MOST;
        unsigned char *to = command_begin(q, FREE_HEAD + 9 * count);
        if (!to)
            return -1;
        command_end(q, free_command(to, q->freed + done, count), NULL, 0);
        done += count;
    }
    q->nfreed -= wanted;
    if (q->nfreed)
        memmove(q->freed, q->freed + wanted, q->nfreed * sizeof(freed));
    return 0;
}

/* Forget a handle on the worker: never raises, called by destructors in any thread. */
void queue_free_handle(Queue *q, uint64_t handle, int small)
{
    if (q->dead)
        return;
    if (small && !grow((void **)&q->freed, &q->freed_room, q->nfreed + 1, sizeof(freed))) {
        q->freed[q->nfreed++] = (freed){handle, q->total};
    } else {
        unsigned char *to = command_begin(q, FREE_HEAD + 9);
        if (to)
            command_end(q, free_command(to, &(freed){handle, 0}, 1), NULL, 0);
        if (!q->armed && to)
            queue_arm(q);
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
    if (gather(q, q->nfreed))
        return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    PyObject_HEAD
    place *places;
    Py_ssize_t count;
    int unplaced; /* commands behind them that nobody has issued */
} Places;

/* Where the first commands came from, which leave the queue, and room for one more place. */
static Places *drop(Queue *q, size_t count)
{
    size_t size = count ? q->places[count - 1].end : 0;
    Places *taken = PyObject_New(Places, the.places);
    if (!taken)
        return NULL;
    taken->count = taken->unplaced = 0;
    taken->places = PyMem_Malloc((count + 1) * sizeof(place));
    if (!taken->places) {
        Py_DECREF(taken);
        PyErr_NoMemory();
        return NULL;
    }
    if (!count)
        return taken;
    memcpy(taken->places, q->places, count * sizeof(place));
    taken->count = (Py_ssize_t)count;
    q->count -= count;
    q->used -= size;
    memmove(q->places, q->places + count, q->count * sizeof(place));
    memmove(q->bytes, q->bytes + size, q->used);
    for (size_t i = 0; i < q->count; i++)
        q->places[i].end -= size;
    return taken;
}

/* What was freed and is used by none of the commands that stay, as one that is put before them. Their number: 0 or 1. */
static int free_early(Queue *q, size_t count)
{
    size_t wanted = 0;
    while (wanted < q->nfreed && wanted < FREE_MOST && q->freed[wanted].total <= q->total - (q->count - count))
        wanted++;
    if (!wanted)
        return 0;
    if (out_reserve(&q->out, FREE_HEAD + 9 * wanted)) {
        PyErr_Clear();
        return 0; /* later, then */
    }
    q->out.used += free_command(q->out.bytes + q->out.used, q->freed, wanted);
    q->out.items++;
    q->nfreed -= wanted;
    memmove(q->freed, q->freed + wanted, q->nfreed * sizeof(freed));
    return 1;
}

int out_reserve(output *o, size_t size)
{
    if (o->used + size <= o->room)
        return 0;
    size_t more = (o->used + size) * 2;
    unsigned char *found = PyMem_Realloc(o->bytes, more);
    if (!found) {
        PyErr_NoMemory();
        return -1;
    }
    o->bytes = found;
    o->room = more;
    return 0;
}

int out_put(output *o, const void *data, size_t size)
{
    if (out_reserve(o, size))
        return -1;
    memcpy(o->bytes + o->used, data, size);
    o->used += size;
    return 0;
}

/* A message was made, or could not be. */
static void out_over(output *o)
{
    o->used = o->items = 0;
    if (o->room > KEPT) {
        PyMem_Free(o->bytes);
        o->bytes = NULL;
        o->room = 0;
    }
}

static int write_plain(Queue *q, size_t count)
{
    q->out.items += count;
    return count ? out_put(&q->out, q->bytes, q->places[count - 1].end) : 0;
}

/* The next message has a number; where its commands came from can be asked for a while. Takes the reference. */
static void number(Queue *q, PyObject *places, size_t count)
{
    PyObject **at = &q->origins[++q->batch % ORIGINS], *before = *at;
    *at = places;
    q->left += count;
    Py_XDECREF(before);
}

static PyObject *queue_leave(Queue *q, PyObject *places)
{
    Py_ssize_t count = PySequence_Size(places);
    if (count < 0)
        return NULL;
    Py_INCREF(places);
    number(q, places, (size_t)count);
    return PyLong_FromUnsignedLongLong(q->batch);
}

static PyObject *queue_places(Queue *q, PyObject *batch)
{
    uint64_t wanted = PyLong_AsUnsignedLongLong(batch);
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = wanted && wanted <= q->batch && q->batch - wanted < ORIGINS ? q->origins[wanted % ORIGINS] : NULL;
    found = found ? found : Py_None;
    Py_INCREF(found);
    return found;
}

static PyObject *take(Queue *q, size_t count, int whole, const char *last, Py_ssize_t size, PyObject *code, int instruction)
{
    output *out = &q->out;
    int early = 0;
    if (out_reserve(out, q->used + 64))
        return NULL;
    if (q->replay && !q->replays)
        q->replays = replays_new();
    Py_ssize_t done = q->replay && q->replays    ? replays_write(q->replays, q, count, whole)
                      : write_plain(q, count)    ? -1
                                                 : (Py_ssize_t)count;
    if (done < 0)
        return NULL;
    if (!whole && done && !last)
        early = free_early(q, (size_t)done);
    out->items += last != NULL;
    if (!out->items)
        return PyBytes_FromStringAndSize(NULL, 0);
    unsigned char head[15] = {0x92, 0xcf};
    put_u64(head + 2, q->batch + 1);
    head[10] = 0xdd;
    for (int i = 0; i < 4; i++)
        head[11 + i] = (unsigned char)(out->items >> (24 - 8 * i));
    PyObject *body = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof head + out->used) + size);
    Places *places = body ? drop(q, (size_t)done) : NULL;
    if (!places) {
        Py_XDECREF(body);
        return NULL;
    }
    char *to = PyBytes_AsString(body);
    memcpy(to, head, sizeof head);
    memcpy(to + sizeof head, out->bytes, out->used);
    places->unplaced = early;
    if (last) {
        memcpy(to + sizeof head + out->used, last, (size_t)size);
        Py_XINCREF(code);
        places->places[places->count++] = (place){code, instruction, 0, 0};
    }
    number(q, (PyObject *)places, (size_t)(places->count + early));
    return body;
}

/* The body of a message of at most `limit` of the first commands, which leave the queue; empty: there is none.
 * Of one that need not be emptied the beginning of a repetition may stay. `last`: an encoded command that leaves behind them,
 * issued at (code, instruction). */
static PyObject *queue_take(Queue *q, PyObject *args)
{
    Py_ssize_t limit, size = 0;
    int whole, instruction = 0;
    const char *last = NULL;
    PyObject *code = NULL;
    if (!PyArg_ParseTuple(args, "np|y#Oi:take", &limit, &whole, &last, &size, &code, &instruction))
        return NULL;
    PyObject *body = take(q, q->count < (size_t)limit ? q->count : (size_t)limit, whole, size ? last : NULL, size,
                          code == Py_None ? NULL : code, instruction);
    out_over(&q->out);
    return body;
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
    return self->count + self->unplaced;
}

static PyObject *places_item(Places *self, Py_ssize_t i)
{
    if (i < 0 || i >= self->count + self->unplaced)
        return PyErr_Format(PyExc_IndexError, "there are %zd commands", self->count + self->unplaced);
    if (i >= self->count)
        Py_RETURN_NONE;
    place *found = &self->places[i];
    if (!found->code)
        Py_RETURN_NONE;
    return Py_BuildValue("(Oi)", found->code, found->instruction);
}

/* The line of a command that was not known when it left: (code, instruction) or None. */
static int places_set_item(Places *self, Py_ssize_t i, PyObject *value)
{
    PyObject *code = NULL;
    int instruction = 0;
    if (i < 0 || i >= self->count || !value) {
        PyErr_SetString(PyExc_IndexError, "no such command");
        return -1;
    }
    if (value != Py_None && !(PyTuple_Check(value) && PyArg_ParseTuple(value, "Oi", &code, &instruction)))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "(code, instruction) or None"), -1);
    PyObject *before = self->places[i].code;
    Py_XINCREF(code);
    self->places[i].code = code;
    self->places[i].instruction = instruction;
    Py_XDECREF(before);
    return 0;
}

static PyType_Slot places_slots[] = {
    {Py_tp_dealloc, places_dealloc},
    {Py_sq_length, places_length},
    {Py_sq_item, places_item},
    {Py_sq_ass_item, places_set_item},
    {0, NULL},
};
PyType_Spec places_spec = {"rgpu._rgpu_issue.Places", sizeof(Places), 0, Py_TPFLAGS_DEFAULT, places_slots};

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

static Queue *listed;

void queue_list(Queue *q)
{
    if (q->listed)
        return;
    q->listed = 1;
    q->next = listed;
    listed = q;
}

Queue *queue_numbered(uint64_t number)
{
    Queue *q = listed;
    while (q && q->number != number)
        q = q->next;
    return q;
}

static void queue_dealloc(Queue *q)
{
    PyTypeObject *type = TYPE(q);
    for (Queue **at = &listed; q->listed && *at; at = &(*at)->next)
        if (*at == q) {
            *at = q->next;
            break;
        }
    for (size_t i = 0; i < q->count; i++)
        Py_XDECREF(q->places[i].code);
    PyMem_Free(q->places);
    PyMem_Free(q->bytes);
    PyMem_Free(q->freed);
    PyMem_Free(q->out.bytes);
    replays_free(q->replays);
    for (int i = 0; i < ORIGINS; i++)
        Py_XDECREF(q->origins[i]);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(q);
    Py_DECREF(type);
}

static PyMethodDef queue_methods[] = {
    {"add_packed", (PyCFunction)queue_add, METH_VARARGS, "Queue an encoded command, issued at (code, instruction)."},
    {"free", (PyCFunction)queue_free, METH_O, "Forget a handle on the worker. Never raises."},
    {"gather", (PyCFunction)queue_gather, METH_NOARGS, "Make commands of what was freed."},
    {"take", (PyCFunction)queue_take, METH_VARARGS, "(limit, whole, last=b'', code, instruction) -> body of the next message, b'' if it were empty."},
    {"leave", (PyCFunction)queue_leave, METH_O, "(places) -> number of a message that leaves past the queue."},
    {"places", (PyCFunction)queue_places, METH_O, "(number of a message) -> where its commands came from; None: that is forgotten."},
    {"refuse", (PyCFunction)queue_refuse, METH_NOARGS, "Nothing enters directly from now on; frees are ignored."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef queue_members[] = {
    {"direct", T_BOOL, offsetof(Queue, direct), 0, "whether commands may enter without their stream's methods"},
    {"armed", T_BOOL, offsetof(Queue, armed), 0, "whether somebody was told that the queue is not empty"},
    {"check", T_BOOL, offsetof(Queue, check), 0, "whether each result's layout is sent to be compared"},
    {"replay", T_BOOL, offsetof(Queue, replay), 0, "whether what repeats leaves as a repetition"},
    {"replayed", T_ULONGLONG, offsetof(Queue, replayed), READONLY, "commands that left as repetitions"},
    {"number", T_ULONGLONG, offsetof(Queue, number), 0, "different from every other stream's"},
    {"ripe", T_PYSSIZET, offsetof(Queue, ripe), 0, "commands after which a batch leaves"},
    {"total", T_ULONGLONG, offsetof(Queue, total), READONLY, "commands queued so far"},
    {"batch", T_ULONGLONG, offsetof(Queue, batch), READONLY, "number of the last message"},
    {"left", T_ULONGLONG, offsetof(Queue, left), READONLY, "commands in messages"},
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
PyType_Spec queue_spec = {
    "rgpu._rgpu_issue.Queue", sizeof(Queue), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, queue_slots,
};

/* ---- the user's line ----------------------------------------------------------------------- */

#define CODES 256

static struct {
    PyObject *code;
    char outside;
} codes[CODES]; /* whose files were looked at */

static size_t slot_of(PyObject *code)
{
    return ((uintptr_t)code >> 4) % CODES;
}

static int is_outside(PyObject *code)
{
    size_t at = slot_of(code);
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

PyObject *users_place(int *instruction)
{
    PyFrameObject *frame = the.lasti_of ? PyEval_GetFrame() : NULL;
    if (!frame)
        return NULL;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    size_t at = slot_of(code);
    if (codes[at].code != code || !codes[at].outside) {
        Py_DECREF(code);
        return NULL;
    }
    *instruction = the.lasti_of(frame);
    return code;
}

/* A new reference to the code of the user's innermost line, and its instruction there; NULL: unknown. Python
 * runs where a file is met for the first time, or the line is not the caller's. */
PyObject *find_place(int *instruction)
{
    *instruction = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    if (!frame)
        return NULL;
    PyObject *code = (PyObject *)PyFrame_GetCode(frame), *where = NULL;
    int outside = is_outside(code);
    if (outside > 0 && the.lasti_of) {
        *instruction = the.lasti_of(frame);
        return code;
    }
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
