/* The loop over a message's commands, and the module. */
#include "execute_loop.h"

unsigned char *templates_expand(const struct templates *all, reader r, size_t *size, uint64_t *count);

#define COMMANDS 4096
#define FUNCTIONS 65536

#define REPLAYED 65536 /* as in rgpu.wire.limits */

struct execute the;

/* ---- a message ----------------------------------------------------------------------------- */

/* The fields of the forms this loop knows, tag included; 0: another command. */
static const unsigned char fields[] = {[FREE] = 2, [EMPTY] = 5, [VIEW] = 7, [UNARY] = 4, [BINARY] = 5, [INPLACE] = 4, [CALL] = 5,
                                       [WRITE] = 4, [READ] = 6};

static int run_one(Loop *loop, PyObject *executor, reader r)
{
    unsigned char head = *r.at, tag = r.end - r.at > 1 ? r.at[1] : 0;
    if ((head & 0xf0) != 0x90 || tag >= sizeof fields || !fields[tag] || (head & 15) != fields[tag])
        return SLOW;
    r.at += 2;
    switch (tag) {
    case FREE: return run_free(loop, r);
    case EMPTY: return run_empty(loop, r);
    case VIEW: return run_view(loop, r);
    case UNARY: return run_elementwise(loop, executor, r, 1);
    case BINARY: return run_elementwise(loop, executor, r, 2);
    case INPLACE: return run_inplace(loop, r);
    case WRITE: return run_write(loop, r);
    case READ: return run_read(loop, executor, r);
    default: return run_call(loop, executor, r);
    }
}

/* The command's error belongs to the client: Python poisons and tells. Errors that end the session go on. */
static int tell_failed(PyObject *executor, uint64_t batch, uint64_t index, reader r)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    PyObject *done = PyObject_CallMethod(executor, "failed", "OKKy#", value, (unsigned long long)batch,
                                         (unsigned long long)index, (const char *)r.at, (Py_ssize_t)(r.end - r.at));
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Let Python run it; the number of commands that it stands for, or -1. */
static int64_t run_slowly(PyObject *executor, uint64_t batch, uint64_t index, reader command)
{
    PyObject *done = PyObject_CallMethod(executor, "run_one", "KKy#", (unsigned long long)batch, (unsigned long long)index,
                                         (const char *)command.at, (Py_ssize_t)(command.end - command.at));
    int64_t count = done ? PyLong_AsLongLong(done) : -1;
    Py_XDECREF(done);
    return PyErr_Occurred() ? -1 : count;
}

static int64_t run_all(Loop *loop, PyObject *executor, reader r, uint64_t batch, uint64_t index, uint64_t count,
                       const uint32_t *ends);

static uint64_t tag_of(reader r)
{
    uint64_t fields, tag;
    return take_list(&r, &fields) && take_natural(&r, &tag) ? tag : 0;
}

/* A Replay: its commands, or -1. Those that are unusual in any way are for the executor. */
static int64_t run_again(Loop *loop, PyObject *executor, uint64_t batch, uint64_t index, reader command)
{
    size_t size;
    uint64_t count;
    uint64_t fields, tag;
    reader r = command;
    int good = take_list(&r, &fields) && fields == 4 && take_natural(&r, &tag);
    unsigned char *made = good ? templates_expand(loop->templates, r, &size, &count) : NULL;
    if (!made || index + count > REPLAYED) {
        PyMem_Free(made);
        return run_slowly(executor, batch, index, command);
    }
    int64_t done = run_all(loop, executor, (reader){made, made + size}, batch, index, count, NULL);
    PyMem_Free(made);
    return done < 0 ? -1 : (int64_t)count;
}

/* Runs `count` commands; with those that they stand for, or -1. `ends`: where each of them ends, from the first one's
 * beginning; NULL: they are a template's. */
static int64_t run_all(Loop *loop, PyObject *executor, reader r, uint64_t batch, uint64_t index, uint64_t count,
                       const uint32_t *ends)
{
    uint64_t first = index, known = 0; /* commands ahead that are known to make no chain */
    const unsigned char *base = r.at;
    for (; count; count--) {
        if (!known && !loop->watched) {
            uint64_t chained = run_chain(loop, r, count, &known);
            for (uint64_t i = 0; !ends && i < chained; i++)
                skip(&r);
            if (ends && chained)
                r.at = base + (ends += chained)[-1];
            index += chained;
            count -= chained;
            if (!count)
                break;
        }
        known -= known > 0;
        reader command = {r.at, r.end};
        if (ends)
            r.at = base + *ends++;
        else
            skip(&r); /* it was whole when the template was learnt */
        command.end = r.at;
        int64_t ran = 1;
        int how = loop->watched ? SLOW : run_one(loop, executor, command);
        if (how == SLOW) {
            uint64_t tag = tag_of(command);
            if (!ends && (tag == TEMPLATE || tag == REPLAY)) {
                PyErr_SetString(the.protocol_error, "a template repeats no template");
                return -1;
            }
            ran = tag == REPLAY ? run_again(loop, executor, batch, index, command)
                                : run_slowly(executor, batch, index, command);
        } else if (how == FAILED && tell_failed(executor, batch, index, command))
            ran = -1;
        if (ran < 0)
            return -1;
        index += (uint64_t)ran;
    }
    return (int64_t)(index - first);
}

/* What a Sync waits for has happened. */
static PyObject *answer_to_sync(const Loop *loop, reader r)
{
    uint64_t reply;
    PyObject *said = take_natural(&r, &reply) ? PyObject_CallNoArgs(loop->at_rest) : NULL;
    int rests = said ? PyObject_IsTrue(said) : 0;
    Py_XDECREF(said);
    if (rests <= 0)
        return NULL;
    unsigned char head[16] = {0x93, DONE_REPLY};
    size_t size = 2 + store_natural(head + 2, reply);
    head[size++] = 0xc0;
    return Py_BuildValue("[y#]", (char *)head, (Py_ssize_t)size);
}

/* The frames of the answer to a Read or a Sync that takes but a moment. NULL without an exception: it is another command, or
 * it does not. */
static PyObject *answer_to(Loop *loop, reader command)
{
    int head = command.end - command.at > 2 ? command.at[0] << 8 | command.at[1] : 0;
    command.at += 2;
    return head == (0x96 << 8 | READ) ? answer_to_read(loop, command) : head == (0x92 << 8 | SYNC) ? answer_to_sync(loop, command) : NULL;
}

/* Whether a command is one that the client waits for, in its usual form. */
static int asks(reader command)
{
    return command.end - command.at > 2 && ((command.at[0] == 0x96 && command.at[1] == READ) || (command.at[0] == 0x92 && command.at[1] == SYNC));
}

/* (executor, body, payload frames) -> (number of commands run, the answer to the last one, if it is still to be told, or
 * None); None where this is no message: nothing has run then. */
static PyObject *loop_run(Loop *loop, PyObject *args)
{
    PyObject *executor, *body, *payload;
    Py_buffer data;
    uint64_t batch, count;
    if (!PyArg_ParseTuple(args, "OOO!:run", &executor, &body, &PyList_Type, &payload) || PyObject_GetBuffer(body, &data, PyBUF_SIMPLE))
        return NULL;
    reader r = {data.buf, (const unsigned char *)data.buf + data.len}, whole;
    int good = take_list(&r, &count) && count == 2 && take_natural(&r, &batch) && take_list(&r, &count) &&
               count <= COMMANDS;
    whole = r;
    uint32_t ends[COMMANDS];
    for (uint64_t i = 0; good && i < count; i++) {
        good = skip(&whole);
        ends[i] = (uint32_t)(whole.at - r.at);
    }
    good = good && whole.at == whole.end;
    loop->payload = payload;
    uint32_t before = good && count > 1 ? ends[count - 2] : 0; /* a count that is not good may be any */
    reader last = {r.at + before, whole.at};
    uint64_t first = good && count && !loop->watched && asks(last) ? count - 1 : count;
    PyObject *answer = NULL;
    int64_t ran = good ? run_all(loop, executor, r, batch, 0, first, ends) : 0;
    if (good && ran >= 0 && first < count) {
        answer = loop->watched ? NULL : answer_to(loop, last);
        int64_t more = answer ? 1 : PyErr_Occurred() ? -1 : run_all(loop, executor, last, batch, (uint64_t)ran, 1, (uint32_t[]){ends[first] - before});
        ran = more < 0 ? -1 : ran + more;
    }
    loop->payload = NULL;
    PyBuffer_Release(&data);
    if (ran < 0)
        return NULL;
    if (good)
        return answer ? Py_BuildValue("(LN)", (long long)ran, answer) : Py_BuildValue("(LO)", (long long)ran, Py_None);
    Py_RETURN_NONE;
}

static PyObject *answered(Loop *loop, PyObject *answer)
{
    if (answer)
        loop->answered++;
    else if (!PyErr_Occurred())
        Py_RETURN_NONE;
    return answer;
}

/* (frames of a message) -> the answer's, where the message is one Read or a Sync and its answer takes but a moment, or one
 * Write, whose answer has no frames; None: it is for `run`, and nothing has happened. */
static PyObject *loop_answer(Loop *loop, PyObject *frames)
{
    Py_buffer data;
    uint64_t batch, count;
    Py_ssize_t size = PyList_Check(frames) ? PyList_Size(frames) : 0;
    if (loop->watched || size < 1 || size > 2)
        Py_RETURN_NONE;
    if (size == 2)
        return answered(loop, answer_to_write(loop, PyList_GetItem(frames, 0), PyList_GetItem(frames, 1)));
    if (PyObject_GetBuffer(PyList_GetItem(frames, 0), &data, PyBUF_SIMPLE))
        return NULL;
    reader r = {data.buf, (const unsigned char *)data.buf + data.len};
    int good = take_list(&r, &count) && count == 2 && take_natural(&r, &batch) && take_list(&r, &count) && count == 1;
    reader command = r;
    good = good && skip(&r) && r.at == r.end && command.end - command.at > 2;
    PyObject *answer = good ? answer_to(loop, command) : NULL;
    PyBuffer_Release(&data);
    return answered(loop, answer);
}

/* How a function's calls go without NumPy's machinery, if they do. */
static direct_function shortcut(PyObject *function, PyObject *known, int elementwise)
{
    if (PyTuple_Check(known))
        return call_reduce;
    if (PyUnicode_Check(known))
        return PyUnicode_CompareWithASCIIString(known, "assign") ? call_copy : call_assign;
    return elementwise && is_matmul(function) ? call_matmul : NULL;
}

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named))
{
    Table *table;
    PyObject *functions, *shortcuts, *ufunc, *at_rest;
    if (!PyArg_ParseTuple(args, "OO!O!OO:Loop", &table, &PyList_Type, &functions, &PyList_Type, &shortcuts, &ufunc,
                          &at_rest))
        return NULL;
    Py_ssize_t count = PyList_Size(functions);
    if (count < 0 || count > FUNCTIONS || PyList_Size(shortcuts) != count ||
        !PyObject_TypeCheck((PyObject *)table, table_type) || !PyType_Check(ufunc))
        return PyErr_Format(PyExc_TypeError, "(table, [function, ...], [(ufunc, ...) or a name, ...], type of ufuncs, at_rest)");
    Loop *loop = (Loop *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!loop)
        return NULL;
    Py_INCREF((PyObject *)table);
    loop->table = table;
    Py_INCREF(at_rest);
    loop->at_rest = at_rest;
    loop->templates = templates_new();
    loop->direct = direct_new((size_t)count);
    loop->functions = PyMem_Calloc((size_t)count + 1, sizeof *loop->functions);
    loop->elementwise = PyMem_Calloc((size_t)count + 1, 1);
    loop->directly = PyMem_Calloc((size_t)count + 1, sizeof *loop->directly);
    loop->reduces = reduces_new(shortcuts);
    if (!loop->templates || !loop->direct || !loop->functions || !loop->elementwise || !loop->directly || !loop->reduces) {
        Py_DECREF((PyObject *)loop);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *function = PyList_GetItem(functions, i);
        Py_INCREF(function);
        loop->functions[i] = function;
        loop->elementwise[i] = (PyObject *)TYPE(function) == ufunc;
        loop->directly[i] = shortcut(function, PyList_GetItem(shortcuts, i), loop->elementwise[i]);
        loop->count++;
    }
    return (PyObject *)loop;
}

static int loop_traverse(Loop *loop, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)TYPE(loop));
    for (size_t i = 0; i < loop->count; i++)
        Py_VISIT(loop->functions[i]);
    Py_VISIT((PyObject *)loop->table);
    Py_VISIT(loop->at_rest);
    return 0;
}

static int loop_clear(Loop *loop)
{
    while (loop->count) {
        PyObject *function = loop->functions[--loop->count];
        Py_DECREF(function);
    }
    Py_CLEAR(loop->at_rest);
    return 0; /* the table breaks its circles itself */
}

static void loop_dealloc(Loop *loop)
{
    PyTypeObject *type = TYPE(loop);
    PyObject_GC_UnTrack(loop);
    loop_clear(loop);
    for (int i = 0; i < DTYPES; i++)
        Py_XDECREF((PyObject *)loop->dtypes[i].dtype);
    templates_free(loop->templates);
    direct_free(loop->direct);
    PyMem_Free(loop->functions);
    PyMem_Free(loop->elementwise);
    PyMem_Free(loop->directly);
    reduces_free(loop->reduces);
    Py_XDECREF((PyObject *)loop->table);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(loop);
    Py_DECREF(type);
}

static PyObject *loop_define(Loop *loop, PyObject *args)
{
    return templates_define(loop->templates, args);
}

static PyMethodDef loop_methods[] = {
    {"define", (PyCFunction)loop_define, METH_VARARGS, "Keep a template: (number, count, data, pieces, holes), checked."},
    {"answer", (PyCFunction)loop_answer, METH_O, "(frames) -> the answer to a message of one Read, Write or Sync, or None."},
    {"place", (PyCFunction)loop_place, METH_O, "(frames) -> where the next frame of a message of one Write belongs, or NotImplemented."},
    {"run", (PyCFunction)loop_run, METH_VARARGS, "(executor, body, payload) -> (commands run, the last one's answer or None); None: not a message, nothing ran."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef loop_members[] = {
    {"answered", T_LONGLONG, offsetof(Loop, answered), 0, "commands, by answer"},
    {"straight", T_LONGLONG, offsetof(Loop, straight), READONLY, "products and reductions by their inner loops"},
    {"chained", T_LONGLONG, offsetof(Loop, chained), READONLY, "commands that ran in chains"},
    {"chunk", T_LONGLONG, offsetof(Loop, chunk), 0, "bytes that leave in one message at most"},
    {"lent", T_BOOL, offsetof(Loop, lent), 0, "an array's memory may be on its way to the client"},
    {"watched", T_BOOL, offsetof(Loop, watched), 0, "every command is for the executor, which records it"},
    {"twin", T_BOOL, offsetof(Loop, twin), 0, "one of two: new memory and reads are for the executor"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot loop_slots[] = {
    {Py_tp_new, loop_new},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_methods, loop_methods},
    {Py_tp_members, loop_members},
    {Py_tp_traverse, loop_traverse},
    {Py_tp_clear, loop_clear},
    {0, NULL},
};
static PyType_Spec loop_spec = {"rgpu._rgpu_execute.Loop", sizeof(Loop), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                loop_slots};

/* ---- the module ---------------------------------------------------------------------------- */

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[4];
    if (!PyArg_ParseTuple(args, "OOOO:configure", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    PyObject **targets[] = {&the.protocol_error, &the.memory_error, &the.poison, &the.decode_dtype};
    for (int i = 0; i < 4; i++) {
        PyObject *before = *targets[i];
        Py_INCREF(given[i]);
        *targets[i] = given[i];
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS, "(ProtocolError, OutOfMemoryError, Poison, decode_dtype), before all else."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "rgpu._rgpu_execute", "The worker's loop in C; see rgpu._native.", -1, functions,
    NULL, NULL, NULL, NULL,
};

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*type)
        return -1;
    Py_INCREF((PyObject *)*type);
    return PyModule_AddObject(module, name, (PyObject *)*type);
}

PyMODINIT_FUNC PyInit__rgpu_execute(void)
{
    static PyTypeObject *loop;
    import_array();
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    if (add_type(module, &account_spec, "Account", &account_type) || add_type(module, &table_spec, "Table", &table_type) ||
        add_type(module, &loop_spec, "Loop", &loop)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
