/* NumPy's declarations, for the files that share its table of functions. */
#ifndef RGPU_EXECUTE_NUMPY_H
#define RGPU_EXECUTE_NUMPY_H
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL rgpu_execute_array
#include <numpy/arrayobject.h>
#endif
