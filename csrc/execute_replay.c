/* Sequences of commands that a client repeats: kept once, written out again for each repetition. Its twin is
 * rgpu.server.replay, which has checked what is defined here; what a Replay brings nobody has. */
#include "execute.h"
#include "execute_read.h"

#define TEMPLATES 16 /* as in rgpu.wire.limits */

typedef struct {
    unsigned char *data;
    uint16_t *pieces;
    int64_t *bases;  /* of each hole: the handle's distance from the base */
    char *given;     /* of each hole: whether its value comes with the Replay instead */
    size_t size, holes;
    uint64_t count;
} template;

struct templates {
    template kept[TEMPLATES];
};

static void forget(template *t)
{
    PyMem_Free(t->data);
    PyMem_Free(t->pieces);
    PyMem_Free(t->bases);
    PyMem_Free(t->given);
    memset(t, 0, sizeof *t);
}

void templates_free(struct templates *all)
{
    for (int i = 0; all && i < TEMPLATES; i++)
        forget(&all->kept[i]);
    PyMem_Free(all);
}

struct templates *templates_new(void)
{
    return PyMem_Calloc(1, sizeof(struct templates));
}

static int fill(template *t, const char *data, PyObject *pieces, PyObject *holes)
{
    size_t sum = 0;
    t->data = PyMem_Malloc(t->size + 1);
    t->pieces = PyMem_Calloc(t->holes + 1, sizeof *t->pieces);
    t->bases = PyMem_Calloc(t->holes + 1, sizeof *t->bases);
    t->given = PyMem_Calloc(t->holes + 1, 1);
    if (!t->data || !t->pieces || !t->bases || !t->given)
        return -1;
    memcpy(t->data, data, t->size);
    for (size_t i = 0; i <= t->holes; i++) {
        t->pieces[i] = (uint16_t)PyLong_AsUnsignedLong(PyList_GetItem(pieces, (Py_ssize_t)i));
        sum += t->pieces[i];
    }
    for (size_t i = 0; i < t->holes; i++) {
        PyObject *k = PyList_GetItem(holes, (Py_ssize_t)i);
        t->given[i] = k == Py_None;
        if (k != Py_None)
            t->bases[i] = PyLong_AsLongLong(k);
    }
    if (!PyErr_Occurred() && sum != t->size)
        PyErr_SetString(PyExc_ValueError, "pieces that do not fit");
    return PyErr_Occurred() ? -1 : 0;
}

/* (template, count, data, pieces, holes), checked by the executor. */
PyObject *templates_define(struct templates *all, PyObject *args)
{
    unsigned number;
    unsigned long long count;
    const char *data;
    Py_ssize_t size;
    PyObject *pieces, *holes;
    if (!PyArg_ParseTuple(args, "IKy#O!O!:define", &number, &count, &data, &size, &PyList_Type, &pieces, &PyList_Type,
                          &holes))
        return NULL;
    if (number >= TEMPLATES || PyList_Size(pieces) != PyList_Size(holes) + 1)
        return PyErr_Format(PyExc_ValueError, "template %u", number);
    template made = {.size = (size_t)size, .holes = (size_t)PyList_Size(holes), .count = count};
    if (fill(&made, data, pieces, holes)) {
        forget(&made);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    forget(&all->kept[number]);
    all->kept[number] = made;
    Py_RETURN_NONE;
}

/* Step over one value that holds no others. */
static int skip_scalar(reader *r)
{
    if (r->at == r->end)
        return 0;
    unsigned char mark = *r->at;
    int holds = (mark >= 0x80 && mark < 0xa0) || (mark >= 0xdc && mark <= 0xdf);
    return !holds && skip(r);
}

/* The bytes that a Replay's fields (behind the tag) stand for, `count` commands; NULL: that is for the executor to
 * judge. To be freed. */
unsigned char *templates_expand(const struct templates *all, reader r, size_t *size, uint64_t *count)
{
    uint64_t number, base, given, wanted = 0;
    if (!take_natural(&r, &number) || number >= TEMPLATES || !take_natural(&r, &base) || !take_list(&r, &given))
        return NULL;
    const template *t = &all->kept[number];
    for (size_t i = 0; i < t->holes; i++)
        wanted += (uint64_t)t->given[i];
    reader check = r;
    for (uint64_t i = 0; i < given; i++)
        if (!skip_scalar(&check))
            return NULL;
    if (!t->count || given != wanted)
        return NULL;
    unsigned char *made = PyMem_Malloc(t->size + 9 * t->holes + (size_t)(check.at - r.at) + 1), *to = made;
    if (!made)
        return NULL;
    const unsigned char *from = t->data;
    for (size_t i = 0; i <= t->holes; i++) {
        memcpy(to, from, t->pieces[i]);
        to += t->pieces[i];
        from += t->pieces[i];
        if (i == t->holes)
            break;
        if (t->given[i]) {
            const unsigned char *value = r.at;
            skip(&r);
            memcpy(to, value, (size_t)(r.at - value));
            to += r.at - value;
        } else {
            uint64_t handle = base + (uint64_t)t->bases[i];
            *to++ = 0xcf;
            for (int shift = 56; shift >= 0; shift -= 8)
                *to++ = (unsigned char)(handle >> shift);
        }
    }
    reader whole = {made, to};
    for (uint64_t i = 0; i < t->count; i++)
        if (!skip(&whole)) {
            PyMem_Free(made);
            return NULL;
        }
    if (whole.at != to) {
        PyMem_Free(made);
        return NULL;
    }
    *size = (size_t)(to - made);
    *count = t->count;
    return made;
}
