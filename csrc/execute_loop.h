/* What the files of the worker's loop share: the loop itself, and the commands that it runs. */
#ifndef RGPU_EXECUTE_LOOP_H
#define RGPU_EXECUTE_LOOP_H
#include "execute.h"
#include "execute_read.h"

#include "execute_numpy.h"

enum { FREE = 2, EMPTY, VIEW, UNARY, BINARY, INPLACE, CALL, WRITE = 11, READ, SYNC, TEMPLATE = 16, REPLAY }; /* as in rgpu.wire.ops */
enum { DONE_REPLY = 1, DATA_REPLY };                           /* the replies to SYNC and READ, as there */
enum { LIST, TUPLE, HANDLE, DTYPE, ELLIPSIS = 7, INT = 11 }; /* as in rgpu.wire.values */

enum { DONE, SLOW, FAILED }; /* SLOW: nothing has happened yet; FAILED: with an exception */

#define DTYPES 16
#define PRODUCTS 2 /* dtypes of matrices that are multiplied directly */

struct loop;
/* Of the arguments that r stands before. A new array, or None; NULL: it is NumPy's to compute, or an exception. */
typedef PyObject *(*direct_function)(struct loop *loop, uint64_t fn, reader *r);

typedef struct loop {
    PyObject_HEAD
    Table *table;
    PyObject **functions;
    char *elementwise; /* whether a function is a ufunc of NumPy's own */
    size_t count;
    char lent, watched, twin;
    long long chunk;     /* bytes that leave in one message at most */
    long long answered;  /* commands, by `answer` */
    long long straight;  /* calls without NumPy's machinery */
    long long chained;   /* commands that ran in chains */
    PyObject *payload; /* frames of the message that runs, a list; borrowed */
    PyObject *at_rest; /* () -> whether a Sync has nothing to wait for */
    struct templates *templates;
    struct direct *direct;
    direct_function *directly; /* how a function's calls go without NumPy's machinery; NULL: they do not */
    struct product {
        char proofs, refused;
    } products[PRODUCTS];
    struct reduces *reduces;
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

/* execute_chain.c */
uint64_t run_chain(Loop *loop, reader r, uint64_t count, uint64_t *seen); /* how many have run */

/* execute_call.c */
int run_call(Loop *loop, PyObject *executor, reader r);
PyArrayObject *take_array(const Loop *loop, reader *r); /* borrowed; NULL: it is no array's handle */

/* execute_copy.c */
PyObject *call_assign(Loop *loop, uint64_t fn, reader *r);
PyObject *call_copy(Loop *loop, uint64_t fn, reader *r);

/* execute_spare.c */
PyArrayObject *spare_take(int ndim, npy_intp *shape, int type); /* a new array in C order, of any content */

/* execute_write.c */
int run_write(Loop *loop, reader r);
PyObject *loop_place(Loop *loop, PyObject *frames);
PyObject *answer_to_write(Loop *loop, PyObject *body, PyObject *payload);

/* execute_reduce.c */
struct reduces *reduces_new(PyObject *list);
void reduces_free(struct reduces *all);
PyObject *call_reduce(Loop *loop, uint64_t fn, reader *r);

/* execute_matmul.c */
int is_matmul(PyObject *function);
PyObject *call_matmul(Loop *loop, uint64_t fn, reader *r);

#endif
