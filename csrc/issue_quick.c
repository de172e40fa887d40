/* Calls that were made before: what a signature makes, and how it is learned. */
#include "issue_line.h"

#define KEPT 4096 /* signatures of one function: a program that makes endless shapes must not keep them */
#ifdef __GNUC__
#define APART __attribute__((noinline)) /* its large frame is for those who need it */
#else
#define APART
#endif
#define TRIES 3   /* calls of one signature that may turn out not to be repeatable before nobody asks again */

/* ---- what a signature makes ----------------------------------------------------------------- */

enum { OUT, HANDLE, ROOT, OFFSET, NUMBER }; /* what stands in a hole: 9 bytes, the encoding's mark and 8 more */

typedef struct {
    uint32_t at;
    uint8_t kind, index;
} hole;

#define CHUNK 16 /* an entry's bytes are so much at a time */

enum { UNKNOWN, NOTHING, ITSELF, FRESH, VIEW }; /* what the call returns */

struct entry {
    uint64_t hash;
    uint64_t *words;
    hole *holes;
    unsigned char *bytes;
    PyObject *meta, *keep;
    int64_t offset; /* of a view in its array */
    size_t size, room; /* room: rounded up to chunks */
    int nwords, nholes;
    uint8_t returns, small, tries, inside; /* inside: a view with elements, whose offset means something */
};

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
    line *lines = quick->lines;
    size_t room = quick->room;
    quick->entries = NULL;
    quick->lines = NULL;
    quick->room = quick->count = 0;
    for (int i = 0; lines && i < LINES; i++)
        for (int j = 0; j <= LINE_ARGS; j++)
            Py_XDECREF(lines[i].kept[j]);
    PyMem_Free(lines);
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

/* The array whose memory it is; a root that was given another shape is a view of what it was. */
static Remote *root_of(Remote *array)
{
    while (array->root && array->root != Py_None && PyObject_TypeCheck(array->root, the.remote))
        array = (Remote *)array->root;
    return array;
}

static void put_number(unsigned char *at, PyObject *number)
{
    uint64_t bits;
    if (PyFloat_CheckExact(number)) {
        double value = PyFloat_AsDouble(number);
        memcpy(&bits, &value, sizeof bits);
        *at = 0xcb;
    } else {
        bits = (uint64_t)PyLong_AsLongLong(number);
        *at = 0xd3;
    }
    put_u64(at + 1, bits);
}

static inline void fill(unsigned char *to, const entry *e, const operands *with, uint64_t out)
{
    for (size_t i = 0; i < e->room; i += CHUNK)
        memcpy(to + i, e->bytes + i, CHUNK);
    for (int i = 0; i < e->nholes; i++) {
        const hole *h = &e->holes[i];
        unsigned char *at = to + h->at;
        if (h->kind == HANDLE)
            put_u64(at + 1, with->arrays[h->index]->handle);
        else if (h->kind == OUT)
            put_u64(at + 1, out);
        else if (h->kind == NUMBER)
            put_number(at, with->numbers[h->index]);
        else if (h->kind == ROOT)
            put_u64(at + 1, root_of(with->arrays[h->index])->handle);
        else {
            *at = 0xd3;
            put_u64(at + 1, (uint64_t)(with->arrays[h->index]->offset + e->offset));
        }
    }
}

static inline PyObject *result_of(const entry *e, const operands *with, Queue *q, uint64_t out)
{
    if (e->returns == NOTHING)
        Py_RETURN_NONE;
    if (e->returns == ITSELF) {
        KEEP(with->arrays[0]);
        return (PyObject *)with->arrays[0];
    }
    Remote *made = remote_new();
    made->handle = out;
    made->size = (char)e->small;
    made->meta = e->meta;
    made->stream = (PyObject *)q;
    Py_INCREF(made->meta);
    Py_INCREF(made->stream);
    if (e->returns == VIEW) {
        Remote *array = with->arrays[0];
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
static inline PyObject *repeat(const entry *e, const operands *with, Queue *q, PyObject *code, int instruction)
{
    unsigned char *to = command_begin(q, e->room);
    uint64_t out = e->returns >= FRESH ? ++last_handle : 0;
    PyObject *result = to ? result_of(e, with, q, out) : NULL;
    if (!result) {
        Py_XDECREF(code);
        return NULL;
    }
    fill(to, e, with, out);
    command_end(q, e->size, code, instruction);
    if (q->armed && (Py_ssize_t)q->count < q->ripe && !q->check)
        return result;
    if ((!q->armed && queue_arm(q)) || (q->check && out && call_method(q, the.name_expect, result)) ||
        ((Py_ssize_t)q->count >= q->ripe && call_method(q, the.name_flush_batch, NULL)))
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
    size_t room = ((size_t)size + CHUNK - 1) / CHUNK * CHUNK;
    unsigned char *copy = PyMem_Calloc(room + 1, 1);
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
    e->room = room;
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
    PyObject *keep = list_of(s->kept, s->nkept); /* first: the collector may run, and finalizers call this function */
    entry **at = keep ? place_for(quick, s, hash) : NULL, *e = at ? *at : NULL;
    if (!at) {
        Py_XDECREF(keep);
        PyErr_Clear();
        return;
    }
    if (!e) {
        e = PyMem_Calloc(1, sizeof *e);
        if (!e || !(e->words = PyMem_Malloc((size_t)s->nwords * sizeof(uint64_t)))) {
            PyMem_Free(e);
            Py_DECREF(keep);
            return;
        }
        memcpy(e->words, s->words, (size_t)s->nwords * sizeof(uint64_t));
        e->nwords = s->nwords;
        e->hash = hash;
        e->keep = keep;
        *at = e;
        quick->count++;
    } else
        Py_DECREF(keep); /* who is in it lives in the entry's */
    if (e->returns != UNKNOWN || ++e->tries > TRIES || (quick->here && Py_TYPE(result) != the.array))
        return;
    PyObject *arrays = list_of((PyObject *const *)s->with.arrays, s->with.narrays);
    PyObject *numbers = list_of(s->with.numbers, s->with.nnumbers);
    PyObject *lesson =
        arrays && numbers ? PyObject_CallFunctionObjArgs(the.learn, arrays, numbers, result, s->with.queue, NULL) : NULL;
    Py_XDECREF(arrays);
    Py_XDECREF(numbers);
    entry **still = quick->room ? find(quick, s, hash) : NULL; /* Python ran: others may have been here */
    if (lesson && lesson != Py_None && still && *still == e && e->returns == UNKNOWN)
        take_lesson(e, lesson);
    Py_XDECREF(lesson);
    PyErr_Clear();
}

/* The result of a call that a line leads to; NULL: none does, or with an exception. */
static inline PyObject *call_again(Quick *quick, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    uint64_t words[LINE_WORDS];
    operands with;
    int instruction, nwords;
    if (remote_ready() || (nwords = words_of(words, &with, quick, args, count)) < 0 || !quick->lines)
        return NULL;
    const line *l = line_of(quick->lines, words, nwords);
    Queue *q = with.queue;
    if (!is_line(l, words, nwords, count, names, q->number) || !q->direct || (q->number != current && !quick->anywhere))
        return NULL;
    PyObject *code = users_place(&instruction);
    return code ? repeat(l->found, &with, q, code, instruction) : NULL;
}

/* Any other call: one that a signature leads to, or the function's. */
static APART PyObject *call_signed(Quick *quick, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    signature s;
    if (sign_call(&s, quick, args, nargs, names))
        return call_slow(quick->slow, args, nargs, names);
    Queue *q = s.with.queue;
    if (!q->direct || (q->number != current && !quick->anywhere))
        return call_slow(quick->slow, args, nargs, names);
    if (quick->count) {
        int instruction;
        PyObject *code = find_place(&instruction), *before[LINE_ARGS + 1] = {NULL};
        if (remote_ready()) {
            Py_XDECREF(code);
            return NULL;
        }
        entry *e = quick->count ? *find(quick, &s, hash_of(&s)) : NULL;
        if (e && e->returns != UNKNOWN) {
            draw_line(quick, e, args, nargs + (names ? PyTuple_Size(names) : 0), names, before);
            PyObject *result = repeat(e, &s.with, q, code, instruction);
            for (int i = 0; i <= LINE_ARGS; i++)
                Py_XDECREF(before[i]);
            return result;
        }
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

PyObject *quick_call(Quick *quick, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t nargs = (Py_ssize_t)(flags & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    if (quick->lines) {
        PyObject *result = call_again(quick, args, nargs + (names ? PyTuple_Size(names) : 0), names);
        if (result || PyErr_Occurred())
            return result;
    }
    return call_signed(quick, args, nargs, names);
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
    static char *words[] = {"slow", "numbers", "anywhere", "itself", "here", NULL};
    PyObject *slow;
    int numbers = 0, anywhere = 0, itself = 0, here = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|pppp:Quick", words, &slow, &numbers, &anywhere, &itself, &here))
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
    quick->here = (char)here;
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
PyType_Spec quick_spec = {
    "rgpu._rgpu_issue.Quick", sizeof(Quick), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, quick_slots,
};
