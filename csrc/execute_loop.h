/* What the files of the worker's loop share: the loop itself, and the commands that it runs. */
#ifndef RGPU_EXECUTE_LOOP_H
#define RGPU_EXECUTE_LOOP_H
#include "execute.h"
#include "execute_read.h"

#include "execute_numpy.h"

enum { FREE = 2, EMPTY, VIEW, UNARY, BINARY, INPLACE, CALL, READ = 12, SYNC, TEMPLATE = 16, REPLAY }; /* as in rgpu.wire.ops */
enum { DONE_REPLY = 1, DATA_REPLY };                           /* the replies to SYNC and READ, as there */
enum { LIST, TUPLE, HANDLE, DTYPE, ELLIPSIS = 7, INT = 11 }; /* as in rgpu.wire.values */

enum { DONE, SLOW, FAILED }; /* SLOW: nothing has happened yet; FAILED: with an exception */

#define DTYPES 16

typedef struct {
    PyObject_HEAD
    Table *table;
    PyObject **functions;
    char *elementwise; /* whether a function is a ufunc of NumPy's own */
    size_t count;
    char lent, watched, twin;
    long long answered;  /* commands, by `answer` */
    PyObject *at_rest; /* () -> whether a Sync has nothing to wait for */
    struct templates *templates;
    struct direct *direct;
    struct {
        char text[8];
        PyArray_Descr *dtype;
    } dtypes[DTYPES];
} Loop;

/* execute_plain.c */
int run_elementwise(Loop *loop, PyObject *executor, reader r, int operands);
int run_inplace(Loop *loop, reader r);
int run_view(Loop *loop, reader r);
int run_empty(Loop *loop, reader r);
int run_free(Loop *loop, reader r);
int run_read(Loop *loop, PyObject *executor, reader r);
PyObject *answer_to_read(Loop *loop, reader r); /* the reply's frames; NULL without an exception: SLOW */
int keep(Loop *loop, uint64_t handle, PyObject **result);
int take_new_handle(const Loop *loop, reader *r, uint64_t *handle);
PyObject *take_operand(const Loop *loop, reader *r);
PyArray_Descr *dtype_of(Loop *loop, const char *text, size_t size);

/* execute_call.c */
int run_call(Loop *loop, PyObject *executor, reader r);

#endif
