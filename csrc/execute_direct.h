/* What the files share that call NumPy's inner loops themselves. */
#ifndef RGPU_EXECUTE_DIRECT_H
#define RGPU_EXECUTE_DIRECT_H
#include "execute_loop.h"

#define NO_IMPORT_UFUNC
#define PY_UFUNC_UNIQUE_SYMBOL rgpu_execute_ufunc
#include <numpy/ufuncobject.h>

/* One of a ufunc's loops, for operands and result of one dtype. */
typedef struct {
    PyUFuncGenericFunction call;
    void *data;
} inner_loop;

enum { BOOL, INT32, INT64, FLOAT32, FLOAT64, TYPES };

typedef union {
    npy_bool b;
    npy_int32 i;
    npy_int64 l;
    float f;
    double d;
} element;

/* execute_direct.c */
int type_of(const PyArrayObject *array); /* TYPES: another */
int number_as(PyObject *x, int type, element *to);
int direct_loop(struct direct *d, size_t fn, PyObject *function, int type, int nin, inner_loop *found, int *out);
int direct_mixes(struct direct *d, size_t fn, PyObject *function, int type);
int find_loop(PyObject *ufunc, int type, inner_loop *found); /* 0: there is none */
int disturbs(const PyArrayObject *into, const PyArrayObject *from); /* they overlap, and are not the same */
int same_bytes(PyArrayObject *ours, PyObject *theirs);        /* and the same type and shape; takes theirs */

/* Whether NumPy's loops take it as it lies. */
static inline int lies_plainly(const PyArrayObject *array)
{
    return PyArray_ISALIGNED(array) && PyArray_ISNOTSWAPPED(array);
}

#endif
