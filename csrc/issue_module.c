/* The array type with its operators, and the module. */
#include "issue.h"

#ifndef _WIN32
#include <dlfcn.h>
#endif

struct issue the;
uint64_t last_handle;
_Thread_local uint64_t current;

/* ---- arrays -------------------------------------------------------------------------------- */

char size_of(PyObject *meta)
{
    PyObject *nbytes = meta ? PyObject_GetAttr(meta, the.name_nbytes) : NULL;
    long long size = nbytes ? PyLong_AsLongLong(nbytes) : 0;
    Py_XDECREF(nbytes);
    PyErr_Clear();
    return size <= SMALL ? 1 : 2;
}

Remote *spare[SPARE];
int nspare;

/* The worker may forget the array. Keeps the error that the program may be in the middle of. */
static void give_back(Remote *self)
{
    Queue *q = (Queue *)self->stream;
    if (self->size == 1 && q->nfreed < q->freed_room) {
        q->freed[q->nfreed++] = (freed){self->handle, q->total};
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
    if (type == the.array && nspare < SPARE)
        spare[nspare++] = self;
    else
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* There is an object for the next `remote_new`; -1 with an exception. The collector may run here, and with it any Python. */
int remote_more(void)
{
    static allocfunc alloc;
    if (!alloc)
        alloc = (allocfunc)PyType_GetSlot(the.array, Py_tp_alloc);
    Remote *made = (Remote *)alloc(the.array, 0);
    if (!made)
        return -1;
    PyObject_GC_UnTrack(made);
    if (nspare < SPARE)
        spare[nspare++] = made; /* without its reference to the type, which `remote_new` takes again */
    else /* others came back meanwhile */
        ((freefunc)PyType_GetSlot(the.array, Py_tp_free))(made);
    Py_DECREF((PyObject *)the.array);
    return 0;
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
    {"_metadata", T_OBJECT_EX, offsetof(Remote, meta), 0, NULL},
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

static PyObject *set_current(PyObject *Py_UNUSED(module), PyObject *queue)
{
    current = is_queue(queue) ? ((Queue *)queue)->number : 0;
    if (current)
        queue_list((Queue *)queue);
    Py_RETURN_NONE;
}

static PyObject *configure(PyObject *Py_UNUSED(module), PyObject *args, PyObject *named)
{
    static char *words[] = {"arm", "learn", "outside", "place_of", "array", "constants", NULL};
    PyObject *arm = NULL, *learn = NULL, *outside = NULL, *place_of = NULL, *array = NULL, *constants = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|OOOOO!O!:configure", words, &arm, &learn, &outside, &place_of,
                                     &PyType_Type, &array, &PyTuple_Type, &constants))
        return NULL;
    PyObject **targets[] = {&the.arm, &the.learn, &the.outside, &the.place_of, (PyObject **)&the.array, &the.constants};
    PyObject *given[] = {arm, learn, outside, place_of, array, constants};
    for (int i = 0; i < 6; i++)
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
    {"set_current", set_current, METH_O, "The queue of this thread's current device (None: there is none)."},
    {"set_operator", set_operator, METH_VARARGS, "(name, Quick): what the array type's operator calls."},
    {"configure", (PyCFunction)(void (*)(void))configure, METH_VARARGS | METH_KEYWORDS,
     "What of Python is called: arm(), learn(arrays, numbers, result), outside(file), place_of(frame); the array class; constants."},
    {NULL, NULL, 0, NULL},
};

/* f_lasti by its descriptor, which makes an integer object each time: the stable ABI has no function for it. Python has
 * one, outside of that promise: it is used where it is found. */
static int find_lasti(void)
{
    PyObject *types = PyImport_ImportModule("types");
    PyObject *frame = types ? PyObject_GetAttrString(types, "FrameType") : NULL;
    the.method = types ? PyObject_GetAttrString(types, "MethodType") : NULL;
    the.lasti = frame ? PyObject_GetAttrString(frame, "f_lasti") : NULL;
    if (the.lasti)
        the.lasti_get = (descrgetfunc)PyType_GetSlot(Py_TYPE(the.lasti), Py_tp_descr_get);
#ifndef _WIN32
    *(void **)&the.lasti_of = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
#endif
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
    PyModuleDef_HEAD_INIT, "rgpu._rgpu_issue", "The issue path in C; see rgpu._native.", -1, functions,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rgpu_issue(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    the.name_nbytes = PyUnicode_InternFromString("nbytes");
    the.name_filename = PyUnicode_InternFromString("co_filename");
    the.name_flush_batch = PyUnicode_InternFromString("flush_batch");
    the.name_expect = PyUnicode_InternFromString("expect");
    if (find_lasti() || add_type(module, &places_spec, "Places", &the.places) ||
        add_type(module, &queue_spec, "Queue", &the.queue) || add_type(module, &quick_spec, "Quick", &the.quick) ||
        add_type(module, &remote_spec, "Remote", &the.remote)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
