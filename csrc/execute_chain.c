/* Element-wise commands that follow each other, run together: block by block through all of them.
 *
 * What lies between them stays in the processor's cache, and what is freed again before their end is never an array. The
 * loops are NumPy's own, on the same elements in the same order as ever, so the bytes are the same. Only large arrays of
 * floating point numbers and booleans, of one shape, in C's order; whatever else comes ends a chain, and runs as ever. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"

#include <math.h>
#include <stdlib.h>

#define OPS 48       /* commands of a chain that compute */
#define VALUES (3 * OPS)
#define FREES 96     /* handles of arrays from before that are freed in a chain */
#define LEAST 32768  /* elements of arrays that are worth it */
#define BLOCK 4096   /* elements that go through the chain together */

static const int numpy_types[TYPES] = {NPY_BOOL, NPY_INT32, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64};
static const size_t float_sizes[TYPES + 1] = {[BOOL] = 1, [FLOAT32] = 4, [FLOAT64] = 8};

/* Operands and results: arrays from before, those that the chain makes, and what is neither named nor kept. */
typedef struct {
    uint64_t handle;
    PyArrayObject *array; /* NULL: made by the chain; while it runs, those that stay have one */
    char *data;
    int type, single; /* one element for all */
    int made, freed, changed;
    int last; /* the command that uses it last */
    int slot; /* of the blocks' memory; -1: it is an array */
} value;

typedef struct {
    inner_loop loop;
    int nin, in[2], out; /* in: -1 a number */
    element numbers[2];
} step;

typedef struct {
    const Loop *loop;
    int ndim; /* of all; 0: not known yet */
    npy_intp shape[NPY_MAXDIMS], size;
    value values[VALUES];
    step steps[OPS];
    uint64_t frees[FREES];
    int nvalues, nsteps, nfrees, linked, held;
} chain;

/* ---- which commands belong to it ------------------------------------------------------------- */

static int is_freed(const chain *c, uint64_t handle)
{
    for (int i = 0; i < c->nfrees; i++)
        if (c->frees[i] == handle)
            return 1;
    return 0;
}

static int known_value(const chain *c, uint64_t handle)
{
    for (int i = c->nvalues; i-- > 0;)
        if (c->values[i].handle == handle)
            return i;
    return -1;
}

static int add_value(chain *c, value v)
{
    c->values[c->nvalues] = v;
    return c->nvalues++;
}

/* The value of a handle; -1: it is nothing for a chain. */
static int value_of(chain *c, uint64_t handle)
{
    int known = known_value(c, handle);
    if (known >= 0)
        return c->values[known].freed ? -1 : known;
    const slot *s = is_freed(c, handle) ? NULL : table_find(c->loop->table, handle);
    if (!s || !PyArray_CheckExact(s->entry))
        return -1;
    PyArrayObject *array = (PyArrayObject *)s->entry;
    int type = type_of(array), single = !PyArray_NDIM(array);
    if (!float_sizes[type] || !lies_plainly(array) || !PyArray_IS_C_CONTIGUOUS(array))
        return -1; /* loops over integers may raise, in the middle */
    if (!single && !c->ndim) {
        if (PyArray_SIZE(array) < LEAST)
            return -1;
        c->ndim = PyArray_NDIM(array);
        c->size = PyArray_SIZE(array);
        memcpy(c->shape, PyArray_DIMS(array), (size_t)c->ndim * sizeof *c->shape);
    }
    if (!single && (PyArray_NDIM(array) != c->ndim || !PyArray_CompareLists(PyArray_DIMS(array), c->shape, c->ndim)))
        return -1;
    return add_value(c, (value){handle, array, PyArray_DATA(array), type, single, 0, 0, 0, 0, -1});
}

/* Whether blocks of what is changed would be seen where other blocks are meant. */
static int clashes(const chain *c)
{
    for (int i = 0; i < c->nvalues; i++) {
        const value *a = &c->values[i];
        if (!a->changed || !a->array)
            continue;
        const char *end = a->data + PyArray_NBYTES(a->array);
        for (int k = 0; k < c->nvalues; k++) {
            const value *b = &c->values[k];
            int same = b->data == a->data && b->single == a->single && b->type == a->type;
            if (k != i && b->array && !same && a->data < b->data + PyArray_NBYTES(b->array) && b->data < end)
                return 1;
        }
    }
    return 0;
}

/* An operand: a value, or -1 and a number to be made one of the arrays' type; 0: neither. */
static int take_source(chain *c, reader *r, int *value_, PyObject **number_)
{
    uint64_t handle;
    reader rest = *r;
    *number_ = NULL;
    if (take_natural(&rest, &handle)) {
        *r = rest;
        *value_ = value_of(c, handle);
        return *value_ >= 0;
    }
    *value_ = -1;
    *number_ = take_operand(c->loop, r);
    return *number_ != NULL;
}

#define FROM_BOOL(name, T)                                                                                           \
    static void name(char **args, const npy_intp *n, const npy_intp *strides, void *Py_UNUSED(data))                 \
    {                                                                                                                \
        if (strides[0] == 1 && strides[1] == sizeof(T)) { /* so that it is compiled to vectors */                    \
            const npy_bool *restrict from = (const npy_bool *)args[0];                                               \
            T *restrict to = (T *)args[1];                                                                           \
            for (npy_intp i = 0, end = *n; i < end; i++)                                                             \
                to[i] = (T)(from[i] != 0);                                                                           \
            return;                                                                                                  \
        }                                                                                                            \
        for (npy_intp i = 0; i < *n; i++)                                                                            \
            *(T *)(args[1] + i * strides[1]) = (T)(args[0][i * strides[0]] != 0);                                    \
    }
FROM_BOOL(float_from_bool, float)
FROM_BOOL(double_from_bool, double)

/* Booleans as numbers of another type, in a step of its own. */
static int convert(chain *c, int from, int type)
{
    PyUFuncGenericFunction loop = (PyUFuncGenericFunction)(type == FLOAT32 ? float_from_bool : double_from_bool);
    int single = c->values[from].single;
    int made = add_value(c, (value){0, NULL, NULL, type, single, 1, 1, 0, c->nsteps, -1});
    c->values[from].last = c->nsteps;
    c->steps[c->nsteps++] = (step){{loop, NULL}, 1, {from, 0}, made, {{0}, {0}}};
    return made;
}

/* A step that computes; `into`: in place. 0: the chain is as it was before, but for values that nobody uses. */
static int add_step(chain *c, size_t fn, const int *in, PyObject *const *given, int nin, int into, uint64_t out)
{
    const Loop *loop = c->loop;
    PyObject *function = loop->functions[fn];
    step s = {.nin = nin};
    int type = TYPES, mixed = 0, whole = 0, linked = 0, made;
    for (int k = 0; k < nin; k++)
        if (in[k] >= 0) {
            const value *v = &c->values[in[k]];
            mixed |= type != TYPES && v->type != type && (v->type == BOOL || type == BOOL);
            if (type == TYPES || type == BOOL)
                type = v->type;
            else if (v->type != BOOL && v->type != type)
                return 0;
            whole |= !v->single;
            linked |= v->made || v->changed;
        }
    if (type == TYPES || !whole || !direct_loop(loop->direct, fn, function, type, nin, &s.loop, &made) ||
        !float_sizes[made] || (mixed && !direct_mixes(loop->direct, fn, function, type)))
        return 0;
    for (int k = 0; k < nin; k++)
        if (in[k] < 0 && !number_as(given[k], type, &s.numbers[k]))
            return 0;
    if (into >= 0 && (made != c->values[into].type || type != made))
        return 0;
    for (int k = 0; k < nin; k++)
        s.in[k] = in[k] >= 0 && c->values[in[k]].type != type ? convert(c, in[k], type) : in[k];
    s.out = into >= 0 ? into : add_value(c, (value){out, NULL, NULL, made, 0, 1, 0, 0, 0, -1});
    for (int k = 0; k < nin; k++)
        if (s.in[k] >= 0)
            c->values[s.in[k]].last = c->nsteps;
    c->values[s.out].last = c->nsteps;
    c->values[s.out].changed = 1;
    c->steps[c->nsteps++] = s;
    c->linked |= linked;
    return 1;
}

static int add_elementwise(chain *c, reader r, int nin)
{
    const Loop *loop = c->loop;
    uint64_t fn, out;
    int in[2];
    PyObject *given[2] = {NULL, NULL};
    if (!take_natural(&r, &fn) || fn >= loop->count || !loop->elementwise[fn] || !take_new_handle(loop, &r, &out) ||
        known_value(c, out) >= 0 || is_freed(c, out))
        return 0;
    int good = take_source(c, &r, &in[0], &given[0]) && (nin == 1 || take_source(c, &r, &in[1], &given[1])) &&
               !clashes(c) && add_step(c, fn, in, given, nin, -1, out);
    Py_XDECREF(given[0]);
    Py_XDECREF(given[1]);
    return good;
}

static int add_inplace(chain *c, reader r)
{
    const Loop *loop = c->loop;
    uint64_t fn, handle;
    int in[2];
    PyObject *given[2] = {NULL, NULL};
    if (!take_natural(&r, &fn) || fn >= loop->count || !loop->elementwise[fn] || !take_natural(&r, &handle))
        return 0;
    if ((in[0] = value_of(c, handle)) < 0 || c->values[in[0]].single)
        return 0;
    value *v = &c->values[in[0]];
    if (v->array && (loop->lent || !PyArray_ISWRITEABLE(v->array)))
        return 0;
    int changed = v->changed, good = take_source(c, &r, &in[1], &given[1]);
    if (good) {
        v->changed = 1;
        good = !clashes(c);
        v->changed = changed;
    }
    good = good && add_step(c, fn, in, given, 2, in[0], 0);
    Py_XDECREF(given[1]);
    return good;
}

static int add_free(chain *c, reader r)
{
    uint64_t count, handle;
    if (!take_list(&r, &count) || count > (uint64_t)(FREES - c->nfrees))
        return 0;
    reader check = r;
    for (uint64_t i = 0; i < count; i++)
        if (!take_natural(&check, &handle) || !handle)
            return 0;
    for (uint64_t i = 0; i < count && take_natural(&r, &handle); i++) {
        int known = known_value(c, handle);
        if (known >= 0)
            c->values[known].freed = 1;
        if (known < 0 || c->values[known].array)
            c->frees[c->nfrees++] = handle;
    }
    return 1;
}

/* 0: this command ends the chain. */
static int add_command(chain *c, reader r)
{
    if (r.end - r.at < 2)
        return 0;
    int head = r.at[0] << 8 | r.at[1];
    r.at += 2;
    if (c->nsteps + 3 > OPS || c->nvalues + 6 > VALUES)
        return 0;
    switch (head) {
    case 0x94 << 8 | UNARY: return add_elementwise(c, r, 1);
    case 0x95 << 8 | BINARY: return add_elementwise(c, r, 2);
    case 0x94 << 8 | INPLACE: return add_inplace(c, r);
    case 0x92 << 8 | FREE: return c->nsteps && add_free(c, r);
    default: return 0;
    }
}

/* ---- running it ------------------------------------------------------------------------------ */

/* Memory for blocks of what is no array; the number of blocks that are alive together. */
static int share_slots(chain *c)
{
    int owner[OPS], count = 0;
    for (int at = 0; at < c->nsteps; at++) {
        value *v = &c->values[c->steps[at].out];
        if (!v->made || !v->freed || v->slot >= 0)
            continue;
        int slot_ = 0;
        while (slot_ < count && c->values[owner[slot_]].last >= at)
            slot_++;
        owner[slot_] = c->steps[at].out;
        v->slot = slot_;
        count += slot_ == count;
    }
    return count;
}

/* Hold what was there, and enter what stays; 0: there is no room. Who asks for room may move arrays away. */
static int hold_all(chain *c)
{
    Table *table = c->loop->table;
    for (; c->held < c->nvalues; c->held++) {
        value *v = &c->values[c->held];
        if (v->array)
            Py_INCREF((PyObject *)v->array);
        else if (!v->freed)
            v->array = spare_take(c->ndim, c->shape, numpy_types[v->type]);
        if (!v->array && !v->freed)
            return 0;
    }
    for (int i = 0; i < c->nvalues; i++) {
        value *v = &c->values[i];
        if (!v->made || v->freed)
            continue;
        if (table_enter(table, v->handle, (PyObject *)v->array, (int64_t)PyArray_NBYTES(v->array), 0))
            return 0;
        v->changed = 2; /* it is in the table */
        v->data = PyArray_DATA(v->array);
    }
    for (int i = 0; i < c->nvalues; i++) {
        const slot *s = c->values[i].made ? NULL : table_find(table, c->values[i].handle);
        if (!c->values[i].made && (!s || s->entry != (PyObject *)c->values[i].array))
            return 0;
    }
    return 1;
}

static void let_go(chain *c, int ran)
{
    for (int i = 0; i < c->held; i++) {
        const value *v = &c->values[i];
        if (!ran && v->made && v->changed == 2)
            table_release(c->loop->table, v->handle);
        Py_XDECREF((PyObject *)v->array);
    }
    for (int i = 0; ran && i < c->nfrees; i++)
        table_release(c->loop->table, c->frees[i]);
}

static void run_blocks(const chain *c, char *memory, npy_intp n)
{
    for (npy_intp from = 0; from < n; from += BLOCK) {
        npy_intp count = n - from < BLOCK ? n - from : BLOCK;
        for (int at = 0; at < c->nsteps; at++) {
            const step *s = &c->steps[at];
            char *data[3];
            npy_intp strides[3];
            for (int k = 0; k <= s->nin; k++) {
                int i = k < s->nin ? s->in[k] : s->out;
                const value *v = i < 0 ? NULL : &c->values[i];
                strides[k] = !v || v->single ? 0 : (npy_intp)float_sizes[v->type];
                data[k] = !v              ? (char *)&s->numbers[k]
                          : v->slot >= 0  ? memory + (size_t)v->slot * BLOCK * 8
                                          : v->data + from * strides[k];
            }
            s->loop.call(data, &count, strides, s->loop.data);
        }
    }
}

/* The first of `count` commands, if they are worth it; how many have run. `seen`: so many need not be looked at again. */
uint64_t run_chain(Loop *loop, reader r, uint64_t count, uint64_t *seen)
{
    chain c;
    c.loop = loop;
    c.ndim = c.nvalues = c.nsteps = c.nfrees = c.linked = c.held = 0;
    uint64_t length = 0;
    while (length < count && add_command(&c, r) && skip(&r))
        length++;
    PyErr_Clear(); /* it is said again where it belongs */
    *seen = length ? length : 1;
    if (c.nsteps < 2 || !c.linked)
        return 0;
    int slots = share_slots(&c), ready;
    void *memory = NULL;
    ready = !slots || !posix_memalign(&memory, 64, (size_t)slots * BLOCK * 8);
    if (ready && (ready = hold_all(&c))) {
        Py_BEGIN_ALLOW_THREADS;
        run_blocks(&c, memory, c.size);
        Py_END_ALLOW_THREADS;
    }
    free(memory);
    let_go(&c, ready);
    PyErr_Clear(); /* one by one they may fit, or say what is missing */
    if (!ready)
        return 0;
    loop->chained += (long long)length;
    *seen = 0;
    return length;
}
