/* The product of two matrices by NumPy's own inner loop, which calls the BLAS, without what stands around it.
 *
 * Only what is plain: two dimensions, one floating dtype, any strides, no extent below 2. As with the element-wise
 * functions, the first results are compared with NumPy's, and all else is NumPy's. */
#define NO_IMPORT_ARRAY
#include "execute_direct.h"

#define PROOFS 3        /* calls that must have given the same bytes */
#define ALONE (1 << 18) /* multiplications from which on other threads may run meanwhile */

static const int numbers[PRODUCTS] = {NPY_FLOAT32, NPY_FLOAT64};

/* Whether a function is this product, of two matrices and no others. */
int is_matmul(PyObject *function)
{
    const PyUFuncObject *ufunc = (const PyUFuncObject *)function;
    return ufunc->core_enabled && ufunc->nin == 2 && ufunc->nout == 1 && ufunc->core_signature &&
           !strcmp(ufunc->core_signature, "(n?,k),(k,m?)->(n?,m?)");
}

static PyArrayObject *multiply(const inner_loop *loop, PyArrayObject *a, PyArrayObject *b)
{
    npy_intp shape[2] = {PyArray_DIM(a, 0), PyArray_DIM(b, 1)};
    PyArrayObject *out = spare_take(2, shape, PyArray_TYPE(a));
    if (!out)
        return NULL;
    char *data[3] = {PyArray_DATA(a), PyArray_DATA(b), PyArray_DATA(out)};
    npy_intp extents[4] = {1, shape[0], PyArray_DIM(a, 1), shape[1]}, steps[9] = {0};
    PyArrayObject *const operands[3] = {a, b, out};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            steps[3 + 2 * k + i] = PyArray_STRIDE(operands[k], i);
    if ((double)shape[0] * (double)shape[1] * (double)extents[2] >= ALONE) {
        Py_BEGIN_ALLOW_THREADS;
        loop->call(data, extents, steps, loop->data);
        Py_END_ALLOW_THREADS;
    } else
        loop->call(data, extents, steps, loop->data);
    return out;
}

/* A new array; NULL: it is NumPy's to compute, or an exception. */
static PyObject *product(struct product *ways, PyObject *function, PyArrayObject *a, PyArrayObject *b)
{
    int type = PyArray_TYPE(a) == numbers[0] ? 0 : 1;
    struct product *way = &ways[type];
    PyArrayObject *const operands[2] = {a, b};
    for (int k = 0; k < 2; k++)
        if (PyArray_TYPE(operands[k]) != numbers[type] || PyArray_NDIM(operands[k]) != 2 || !lies_plainly(operands[k]) ||
            PyArray_DIM(operands[k], 0) < 2 || PyArray_DIM(operands[k], 1) < 2)
            return NULL;
    inner_loop loop;
    if (PyArray_DIM(a, 1) != PyArray_DIM(b, 0) || way->refused || !find_loop(function, numbers[type], &loop))
        return NULL;
    PyArrayObject *out = multiply(&loop, a, b);
    if (!out || way->proofs == PROOFS)
        return (PyObject *)out;
    if (same_bytes(out, PyObject_CallFunctionObjArgs(function, (PyObject *)a, (PyObject *)b, NULL))) {
        way->proofs++;
        return (PyObject *)out;
    }
    way->refused = 1;
    PyErr_Clear(); /* NumPy will say it again */
    Py_DECREF((PyObject *)out);
    return NULL;
}

/* The arguments of a call: (a, b). */
PyObject *call_matmul(Loop *loop, uint64_t fn, reader *r)
{
    uint64_t count;
    PyArrayObject *a, *b;
    if (!take_list(r, &count) || count != 2 || !(a = take_array(loop, r)) || !(b = take_array(loop, r)) ||
        r->at == r->end || *r->at != 0x80)
        return NULL;
    return product(loop->products, loop->functions[fn], a, b);
}
