/* The worker's side of small commands: a session's table of handles, and a loop over a message's commands.
 *
 * The loop reads a message without trusting it and runs the commands it knows in their plain form: an element-wise
 * function, a view, a call with simple arguments, on live arrays that lie in memory as NumPy's own do. Whatever is
 * unusual in any way, malformed, poisoned, lent, in another place, it hands to the Python executor untouched and
 * goes on behind it; so everything is refused in one place, and the two can never disagree about what is allowed. */
#ifndef RGPU_EXECUTE_H
#define RGPU_EXECUTE_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define TYPE(x) Py_TYPE((PyObject *)(x))

struct execute {
    PyObject *protocol_error, *memory_error, *poison, *decode_dtype;
};
extern struct execute the;

typedef struct {
    PyObject_HEAD
    long long used, limit, total;
} Account;

typedef struct {
    uint64_t handle; /* 0: free */
    PyObject *entry;
    Account *account; /* that it counts in; NULL: it owns no memory */
    int64_t nbytes;   /* charged */
    uint64_t root;    /* the array whose memory it shares; 0: none */
    uint32_t views;   /* that share the memory of this one */
    int freed;        /* the handle is nobody's; what it counts for lasts as long as its views */
} slot;

typedef struct {
    PyObject_HEAD
    slot *slots;
    size_t room, count, lasting; /* slots, those in use, and those of them that are freed and have views */
    long long used, limit;
    PyObject *account, *first;
} Table;

/* execute_table.c */
extern PyTypeObject *account_type, *table_type;
extern PyType_Spec account_spec, table_spec;
slot *table_find(const Table *t, uint64_t handle);  /* NULL: unknown */
void table_release(Table *t, uint64_t handle);        /* forget it; unknown ones are ignored */
int64_t table_charge(int64_t nbytes);                 /* what an array counts for */
int table_admits(Table *t, int64_t nbytes);      /* -1 with an exception beyond a limit */
int table_enter(Table *t, uint64_t handle, PyObject *entry, int64_t nbytes, uint64_t root); /* the same, and if in use */

/* execute_spare.c */
void spare_give(PyObject *entry);

/* execute_direct.c */
struct direct;
struct direct *direct_new(size_t functions);
void direct_free(struct direct *d);
PyObject *direct_call(struct direct *d, size_t fn, PyObject *function, PyObject *a, PyObject *b, PyObject *into);

/* execute_replay.c */
struct templates;
struct templates *templates_new(void);
void templates_free(struct templates *all);
PyObject *templates_define(struct templates *all, PyObject *args);

#endif
