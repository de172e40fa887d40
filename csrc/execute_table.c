/* A session's table of handles, and the accounts that its arrays count in. */
#include "execute.h"

#define UNIT 512 /* bytes: what an array counts for is a multiple, as in rgpu.server.table */
#define LIVE 4000000 /* handles of a session, as in rgpu.wire.limits */

/* ---- accounts and the table ---------------------------------------------------------------- */

PyTypeObject *account_type, *table_type;

static size_t place_of(const Table *t, uint64_t handle)
{
    uint64_t hash = handle * 0x9e3779b97f4a7c15u;
    return (size_t)(hash >> 20) & (t->room - 1);
}

static slot *find_any(const Table *t, uint64_t handle)
{
    if (!t->room || !handle)
        return NULL;
    for (size_t at = place_of(t, handle);; at = (at + 1) & (t->room - 1)) {
        slot *s = &t->slots[at];
        if (s->handle == handle)
            return s;
        if (!s->handle)
            return NULL;
    }
}

slot *table_find(const Table *t, uint64_t handle)
{
    slot *s = find_any(t, handle);
    return s && !s->freed ? s : NULL;
}

static int make_room(Table *t)
{
    if (t->count * 2 < t->room)
        return 0;
    size_t room = t->room ? t->room * 2 : 256, before = t->room;
    slot *old = t->slots, *more = PyMem_Calloc(room, sizeof *more);
    if (!more) {
        PyErr_NoMemory();
        return -1;
    }
    t->slots = more;
    t->room = room;
    for (size_t i = 0; i < before; i++)
        if (old[i].handle) {
            size_t at = place_of(t, old[i].handle);
            while (more[at].handle)
                at = (at + 1) & (room - 1);
            more[at] = old[i];
        }
    PyMem_Free(old);
    return 0;
}

/* Take a handle out: what probes past its place is moved up, so that no tombstones pile up. */
static void take_out(Table *t, slot *s)
{
    size_t hole = (size_t)(s - t->slots), mask = t->room - 1;
    for (size_t at = (hole + 1) & mask; t->slots[at].handle; at = (at + 1) & mask) {
        size_t home = place_of(t, t->slots[at].handle);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            t->slots[hole] = t->slots[at];
            hole = at;
        }
    }
    t->slots[hole].handle = 0;
    t->count--;
}

/* Its memory is free: it counts no more. */
static void discharge(Table *t, slot *s)
{
    Account *account = s->account;
    if (!account)
        return;
    s->account = NULL;
    t->used -= s->nbytes;
    account->used -= s->nbytes;
    Py_DECREF((PyObject *)account);
}

/* One view fewer over the memory of a root. */
static void forget_view(Table *t, uint64_t root)
{
    slot *s = find_any(t, root);
    if (!s || --s->views)
        return;
    if (s->freed || (PyObject *)TYPE(s->entry) == the.poison)
        discharge(t, s);
    if (s->freed) {
        t->lasting--;
        take_out(t, s); /* its entry was None */
        Py_DECREF(Py_None);
    }
}

/* Forget a handle; unknown ones are ignored. While views share its memory that counts on, or whoever frees an array and
 * keeps a view of it would hold more than the limit. Destructors of entries may run Python: the table is whole by then. */
void table_release(Table *t, uint64_t handle)
{
    slot *s = table_find(t, handle);
    if (!s)
        return;
    PyObject *entry = s->entry;
    if (s->views) {
        Py_INCREF(Py_None);
        s->entry = Py_None;
        s->freed = 1;
        t->lasting++;
    } else {
        uint64_t root = s->root;
        discharge(t, s);
        take_out(t, s);
        if (root)
            forget_view(t, root);
    }
    spare_give(entry);
}

static int refuse_memory(int64_t nbytes, long long used, long long limit)
{
    PyObject *args = Py_BuildValue("(LLL)", (long long)nbytes, used, limit);
    if (args)
        PyErr_SetObject(the.memory_error, args);
    Py_XDECREF(args);
    return -1;
}

/* Refuse an array that would take the session or its pool beyond its limit (0: none). Where more can be asked for,
 * `draw` of the Python class does that, and raises `limit` or an error. */
int table_admits(Table *t, int64_t nbytes)
{
    const Account *account = (Account *)t->account;
    if (t->limit && nbytes > t->limit - t->used) {
        if (!PyObject_HasAttrString((PyObject *)t, "draw"))
            return refuse_memory(nbytes, t->used, t->limit);
        PyObject *done = PyObject_CallMethod((PyObject *)t, "draw", "L", (long long)nbytes);
        if (!done)
            return -1;
        Py_DECREF(done);
    }
    if (account->limit && nbytes > account->limit - account->used)
        return refuse_memory(nbytes, account->used, account->limit);
    return 0;
}

int64_t table_charge(int64_t nbytes)
{
    return nbytes > INT64_MAX - UNIT ? INT64_MAX : (nbytes + UNIT - 1) / UNIT * UNIT;
}

int table_enter(Table *t, uint64_t handle, PyObject *entry, int64_t nbytes, uint64_t root)
{
    slot *before = find_any(t, handle), *shared = root ? find_any(t, root) : NULL;
    if (before && before->freed && (PyObject *)TYPE(entry) == the.poison) { /* what its views share is lost */
        Py_INCREF(entry);
        Py_DECREF(before->entry);
        before->entry = entry;
        before->freed = 0;
        t->lasting--;
        return 0;
    }
    if (before) {
        PyErr_Format(the.protocol_error, "handle %llu is in use", (unsigned long long)handle);
        return -1;
    }
    if (t->count >= LIVE) {
        PyErr_Format(the.protocol_error, "more than %d live handles", LIVE);
        return -1;
    }
    if (nbytes) {
        nbytes = table_charge(nbytes);
        if (table_admits(t, nbytes))
            return -1;
    }
    if (make_room(t))
        return -1;
    size_t at = place_of(t, handle);
    while (t->slots[at].handle)
        at = (at + 1) & (t->room - 1);
    Py_INCREF(entry);
    t->slots[at] = (slot){handle, entry, NULL, nbytes, shared ? root : 0, 0, 0};
    t->count++;
    if (shared)
        find_any(t, root)->views++; /* it may have moved */
    if (nbytes) {
        Account *account = (Account *)t->account;
        Py_INCREF((PyObject *)account);
        t->slots[at].account = account;
        account->used += nbytes;
        if (account->used > account->total)
            account->total = account->used;
        t->used += nbytes;
    }
    return 0;
}

/* The number of a handle, 0 where it is none. */
static uint64_t number_of(PyObject *handle)
{
    uint64_t number = PyLong_Check(handle) ? PyLong_AsUnsignedLongLong(handle) : 0;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return number;
}

static PyObject *unknown(PyObject *handle)
{
    return PyErr_Format(the.protocol_error, "unknown handle %.30S", handle);
}

static PyObject *table_get(Table *t, PyObject *handle)
{
    slot *s = table_find(t, number_of(handle));
    if (!s)
        return unknown(handle);
    PyObject *entry = s->entry;
    Py_INCREF(entry);
    if ((PyObject *)TYPE(entry) != the.poison)
        return entry;
    PyObject *fresh = PyObject_CallMethod(entry, "with_traceback", "O", Py_None);
    Py_XDECREF(fresh);
    if (fresh)
        PyErr_SetObject(the.poison, entry);
    Py_DECREF(entry);
    return NULL;
}

static PyObject *table_peek(Table *t, PyObject *handle)
{
    slot *s = table_find(t, number_of(handle));
    PyObject *entry = s ? s->entry : Py_None;
    Py_INCREF(entry);
    return entry;
}

static PyObject *table_put(Table *t, PyObject *args)
{
    PyObject *handle, *entry;
    long long nbytes = 0;
    if (!PyArg_ParseTuple(args, "OO|L:put", &handle, &entry, &nbytes))
        return NULL;
    uint64_t number = number_of(handle);
    if (!number || nbytes < 0)
        return unknown(handle);
    if (table_enter(t, number, entry, nbytes, 0))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_put_view(Table *t, PyObject *args)
{
    PyObject *handle, *entry, *root;
    if (!PyArg_ParseTuple(args, "OOO:put_view", &handle, &entry, &root))
        return NULL;
    uint64_t number = number_of(handle);
    if (!number)
        return unknown(handle);
    if (table_enter(t, number, entry, 0, number_of(root)))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_free(Table *t, PyObject *handle)
{
    table_release(t, number_of(handle));
    Py_RETURN_NONE;
}

static PyObject *table_admit(Table *t, PyObject *nbytes)
{
    long long size = PyLong_AsLongLong(nbytes);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        size = INT64_MAX;
    }
    if (table_admits(t, size))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_root(Table *t, PyObject *handle)
{
    slot *s = table_find(t, number_of(handle));
    return PyLong_FromUnsignedLongLong(s ? s->root : 0);
}

/* Handles whose memory is that of a root, itself among them. */
static PyObject *table_sharing(Table *t, PyObject *handle)
{
    uint64_t root = number_of(handle);
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found && i < t->room; i++) {
        const slot *s = &t->slots[i];
        if (!s->handle || s->freed || (s->handle != root && s->root != root))
            continue;
        PyObject *number = PyLong_FromUnsignedLongLong(s->handle);
        if (!number || PyList_Append(found, number))
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

static PyObject *table_entries(Table *t, void *Py_UNUSED(closure))
{
    PyObject *found = PyDict_New();
    for (size_t i = 0; found && i < t->room; i++) {
        if (!t->slots[i].handle || t->slots[i].freed)
            continue;
        PyObject *number = PyLong_FromUnsignedLongLong(t->slots[i].handle);
        if (!number || PyDict_SetItem(found, number, t->slots[i].entry))
            Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}

static Py_ssize_t table_length(Table *t)
{
    return (Py_ssize_t)(t->count - t->lasting);
}

static int table_set_account(Table *t, PyObject *account, void *Py_UNUSED(closure))
{
    if (!account || !PyObject_TypeCheck(account, account_type)) {
        PyErr_SetString(PyExc_TypeError, "an Account");
        return -1;
    }
    PyObject *before = t->account;
    Py_INCREF(account);
    t->account = account;
    Py_XDECREF(before);
    return 0;
}

static PyObject *table_get_account(Table *t, void *first)
{
    PyObject *found = first ? t->first : t->account;
    Py_INCREF(found);
    return found;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *words[] = {"limit", NULL};
    long long limit = 0;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|L:Table", words, &limit))
        return NULL;
    Table *t = (Table *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!t)
        return NULL;
    t->limit = limit;
    t->first = PyObject_CallFunctionObjArgs((PyObject *)account_type, NULL);
    t->account = t->first;
    Py_XINCREF(t->account);
    if (!t->first)
        Py_CLEAR(t);
    return (PyObject *)t;
}

/* A table is on the way of circles: the executor's functions lead to the backend, and that to its table. */
static int table_traverse(Table *t, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)TYPE(t));
    for (size_t i = 0; i < t->room; i++)
        if (t->slots[i].handle)
            Py_VISIT(t->slots[i].entry);
    Py_VISIT(t->account);
    Py_VISIT(t->first);
    return 0;
}

static int table_clear(Table *t)
{
    slot *slots = t->slots;
    size_t room = t->room;
    t->slots = NULL;
    t->room = t->count = 0;
    for (size_t i = 0; i < room; i++)
        if (slots[i].handle) {
            Py_DECREF(slots[i].entry);
            Py_XDECREF((PyObject *)slots[i].account);
        }
    PyMem_Free(slots);
    return 0; /* the accounts are in no circle, and used to the end */
}

static void table_dealloc(Table *t)
{
    PyTypeObject *type = TYPE(t);
    PyObject_GC_UnTrack(t);
    table_clear(t);
    Py_XDECREF(t->account);
    Py_XDECREF(t->first);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(t);
    Py_DECREF(type);
}

static int account_init(Account *self, PyObject *args, PyObject *named)
{
    static char *words[] = {"limit", NULL};
    return PyArg_ParseTupleAndKeywords(args, named, "|L:Account", words, &self->limit) ? 0 : -1;
}

static PyMemberDef account_members[] = {
    {"used", T_LONGLONG, offsetof(Account, used), 0, "bytes that its arrays own"},
    {"limit", T_LONGLONG, offsetof(Account, limit), 0, "bytes that they may own (0: any)"},
    {"total", T_LONGLONG, offsetof(Account, total), 0, "the most that they owned, which the process keeps"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot account_slots[] = {
    {Py_tp_doc, "What a memory pool of the session holds, and may hold."},
    {Py_tp_init, account_init},
    {Py_tp_members, account_members},
    {0, NULL},
};
PyType_Spec account_spec = {
    "rgpu._rgpu_execute.Account", sizeof(Account), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, account_slots,
};

static PyMethodDef table_methods[] = {
    {"get", (PyCFunction)table_get, METH_O, "The object of a handle; raises its poison, or ProtocolError."},
    {"peek", (PyCFunction)table_peek, METH_O, "The same, poison as it is; None where there is nothing."},
    {"put", (PyCFunction)table_put, METH_VARARGS, "(handle, entry, nbytes=0): bind a new handle."},
    {"put_view", (PyCFunction)table_put_view, METH_VARARGS, "(handle, entry, root): an array over another's memory."},
    {"free", (PyCFunction)table_free, METH_O, "Forget a handle; unknown ones are ignored."},
    {"admit", (PyCFunction)table_admit, METH_O, "Refuse an array beyond the limits."},
    {"root", (PyCFunction)table_root, METH_O, "The handle of the array whose memory it shares; 0: its own."},
    {"sharing", (PyCFunction)table_sharing, METH_O, "Handles over the memory of a root, itself among them."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef table_members[] = {
    {"used", T_LONGLONG, offsetof(Table, used), READONLY, NULL},
    {"limit", T_LONGLONG, offsetof(Table, limit), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef table_getset[] = {
    {"entries", (getter)table_entries, NULL, "a copy: handle -> object", NULL},
    {"account", (getter)table_get_account, (setter)table_set_account, NULL, NULL},
    {"default", (getter)table_get_account, NULL, NULL, "default"},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},         {Py_tp_dealloc, table_dealloc}, {Py_tp_methods, table_methods},
    {Py_tp_members, table_members}, {Py_tp_getset, table_getset},   {Py_mp_length, table_length},
    {Py_tp_traverse, table_traverse}, {Py_tp_clear, table_clear},
    {0, NULL},
};
PyType_Spec table_spec = {
    "rgpu._rgpu_execute.Table", sizeof(Table), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, table_slots,
};
