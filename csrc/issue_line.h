/* The last calls of a Quick, by the identity of their arguments; see issue_quick.c, whose part this is. */
#ifndef RGPU_ISSUE_LINE_H
#define RGPU_ISSUE_LINE_H
#include "issue_sign.h"

#define LINES 8     /* a power of two */
#define LINE_ARGS 4 /* of calls with more the signature is always made */
#define LINE_WORDS (LINE_ARGS + 2) /* a slice has three */

/* Most calls are made again with the very same objects but for the arrays: they are told by addresses, before any
 * signature is made. A line leads to the entry that its call's signature found. */
struct line {
    entry *found; /* NULL: the line is free */
    uint64_t number; /* the queue's */
    uint64_t words[LINE_WORDS];
    PyObject *names; /* of the keywords, a constant of the calling code */
    PyObject *kept[LINE_ARGS + 1]; /* whose addresses are in the line, but for layouts: those the entry keeps */
    Py_ssize_t count; /* of the arguments */
    int nwords;
};

/* The words of a call's arguments, their number, and what its bytes need of them. -1: it is not one of those. */
static inline int words_of(uint64_t *words, operands *with, const Quick *quick, PyObject *const *args, Py_ssize_t count)
{
    int n = 0;
    with->narrays = with->nnumbers = 0;
    if (count > LINE_ARGS)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *x = args[i];
        if (Py_TYPE(x) == the.array) {
            int same = 0;
            while (same < with->narrays && with->arrays[same] != (Remote *)x)
                same++;
            if (same < with->narrays) {
                words[n++] = IS_SAME | (unsigned)same << 4;
                continue;
            }
            with->arrays[with->narrays++] = (Remote *)x;
            words[n++] = (uintptr_t)((Remote *)x)->meta | IS_META;
            if (((Remote *)x)->stream != with->arrays[0]->stream)
                return -1;
        } else if (PyFloat_CheckExact(x)) {
            with->numbers[with->nnumbers++] = x;
            words[n++] = IS_NUMBER;
        } else if (Py_TYPE(x) == &PySlice_Type) {
            Py_ssize_t start, stop, step;
            if (n + 2 + count - i > LINE_WORDS)
                return -1;
            if (PySlice_Unpack(x, &start, &stop, &step)) {
                PyErr_Clear();
                return -1;
            }
            if (step != (int32_t)step)
                return -1;
            words[n++] = (uint64_t)step << 3 | IS_SLICE; /* first: it tells how many words follow */
            words[n++] = (uint64_t)start;
            words[n++] = (uint64_t)stop;
        } else if (PyTuple_CheckExact(x)) {
            return -1; /* most are made for the call */
        } else {
            if (quick->numbers && PyLong_CheckExact(x))
                with->numbers[with->nnumbers++] = x;
            words[n++] = (uintptr_t)x | IS_OBJECT;
        }
    }
    if (!with->narrays || !with->arrays[0]->stream || !is_queue(with->arrays[0]->stream))
        return -1;
    with->queue = (Queue *)with->arrays[0]->stream;
    return n;
}

static inline line *line_of(line *lines, const uint64_t *words, int nwords)
{
    uint64_t mixed = 0;
    for (int i = 0; i < nwords; i++)
        mixed = mixed * 5 + (words[i] >> 3);
    return &lines[mixed * 0x9e3779b97f4a7c15u >> 32 & (LINES - 1)];
}

static inline int is_line(const line *l, const uint64_t *words, int nwords, Py_ssize_t count, PyObject *names,
                          uint64_t number)
{
    if (!l->found || l->nwords != nwords || l->count != count || l->names != names || l->number != number)
        return 0;
    for (int i = 0; i < nwords; i++)
        if (l->words[i] != words[i])
            return 0;
    return 1;
}

/* Lead such a call to its entry from now on. What the line kept before goes to `before`, to be released when any
 * Python may run. */
static void draw_line(Quick *quick, entry *e, PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **before)
{
    uint64_t words[LINE_WORDS];
    operands with;
    int nwords = words_of(words, &with, quick, args, count);
    if (nwords < 0 || (!quick->lines && !(quick->lines = PyMem_Calloc(LINES, sizeof *quick->lines))))
        return;
    line *l = line_of(quick->lines, words, nwords);
    memcpy(before, l->kept, sizeof l->kept);
    memset(l, 0, sizeof *l);
    l->found = e;
    l->number = with.queue->number;
    l->count = count;
    l->names = l->kept[LINE_ARGS] = names;
    Py_XINCREF(names);
    l->nwords = nwords;
    memcpy(l->words, words, (size_t)nwords * sizeof *words);
    for (Py_ssize_t i = 0; i < count; i++)
        if (Py_TYPE(args[i]) != the.array && Py_TYPE(args[i]) != &PySlice_Type) {
            l->kept[i] = args[i];
            Py_INCREF(args[i]);
        }
}

#endif
