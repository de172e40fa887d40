"""A stand-in for CuPy where there is no card: NumPy's functions as kernels on the streams of ``cupy.cuda``.

As much as the cupy backend, its graphs and scripts/bench need. Every function reads and writes device memory only
when it runs, so a graph that is launched on memory which somebody else has by then does what it would do on a card.
"""

import functools
import re

import numpy as np

from cupy import cuda
from cupy.cuda import issue, machine

__version__ = "a stand-in"
uint8 = np.uint8


class _Flags:
    def __init__(self, view, owndata):
        self.c_contiguous, self.f_contiguous = view.flags.c_contiguous, view.flags.f_contiguous
        self.owndata = owndata


class ndarray(np.lib.mixins.NDArrayOperatorsMixin):
    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape, dtype = tuple(shape), np.dtype(dtype)
        like = np.empty(shape, dtype, order) if strides is None else None
        strides = like.strides if like is not None else tuple(strides)
        self.base = None
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        self.data = cuda.alloc(self.nbytes) if memptr is None else memptr
        if self.nbytes:
            self.view = np.ndarray(shape, dtype, machine.memory, self.data.ptr - cuda.BASE, strides)
        else:
            self.view = np.empty(shape, dtype)

    shape = property(lambda self: self.view.shape)
    strides = property(lambda self: self.view.strides)
    dtype = property(lambda self: self.view.dtype)
    size = property(lambda self: self.view.size)
    ndim = property(lambda self: self.view.ndim)
    flags = property(lambda self: _Flags(self.view, self.base is None))
    real = property(lambda self: _over(self, self.view.real))
    T = property(lambda self: _over(self, self.view.T))

    def __array_ufunc__(self, function, method, *args, out=None, **kwargs):
        assert method == "__call__"
        return ufunc(function)(*args, out=out and out[0], **kwargs)

    def get(self, out=None):
        cuda._no_capture("D2H")
        result = np.empty(self.shape, self.dtype) if out is None else out
        result[...] = self.view
        return result

    def set(self, host):
        cuda._no_capture("H2D")
        self.view[...] = host

    def item(self):
        return self.get().item()

    def copy(self, order="C"):
        return self.astype(self.dtype, order)

    def astype(self, dtype, order="C", copy=True):
        out = ndarray(self.shape, dtype, order=order)
        issue(lambda a=out.view, b=self.view: np.copyto(a, b, casting="unsafe"))
        return out

    def fill(self, value):
        issue(lambda a=self.view: a.fill(value))

    def reshape(self, *shape):
        view = self.view.reshape(*shape)
        return _over(self, view) if np.may_share_memory(view, self.view) else self.copy().reshape(*shape)

    def __bool__(self):
        return bool(self.get())

    def __float__(self):
        return float(self.get())

    def __len__(self):
        return len(self.view)

    def __getitem__(self, index):
        return _over(self, self.view[index])

    def __setitem__(self, index, value):
        copyto(self[index], value)

    __hash__ = None


def _over(array, view):
    """An array over the memory of another."""
    view = np.asarray(view)
    at = view.__array_interface__["data"][0] - array.view.__array_interface__["data"][0]
    made = ndarray(view.shape, view.dtype, array.data + at if view.size else array.data, view.strides)
    made.base = array
    return made


def _host(x):
    return np.zeros(x.shape, x.dtype) if isinstance(x, ndarray) else x


def _view(x):
    return x.view if isinstance(x, ndarray) else x


class ufunc:
    def __init__(self, function):
        self.function, self.__name__ = function, function.__name__

    def __call__(self, *args, out=None, **kwargs):
        if cuda.get_current_stream().operations is not None and self.__name__ in machine.refused:
            raise NotImplementedError(f"{self.__name__} is not supported while a stream is captured")
        with np.errstate(all="ignore"):
            like = self.function(*map(_host, args), **kwargs)
        several = isinstance(like, tuple)
        likes = like if several else (like,)
        outs = [out] if out is not None else [ndarray(np.shape(x), np.asarray(x).dtype) for x in likes]
        views = [_view(x) for x in args]

        def work(targets=tuple(x.view for x in outs)):
            with np.errstate(all="ignore"):
                found = self.function(*views, **{k: v for k, v in kwargs.items() if k != "casting"})
            for target, x in zip(targets, found if several else (found,)):
                np.copyto(target, x, casting="unsafe")

        issue(work)
        return tuple(outs) if several else outs[0]


def _reduction(name):
    def reduce(a, axis=None, dtype=None, keepdims=False):
        extra = {} if dtype is None or name in ("max", "min", "any", "all") else {"dtype": dtype}
        function = functools.partial(getattr(np, name), axis=axis, keepdims=keepdims, **extra)
        space = ndarray((a.size + 1,), a.dtype)  # as CUB asks for
        like = np.asarray(function(np.zeros(a.shape, a.dtype)))
        out = ndarray(like.shape, like.dtype)
        issue(lambda a=a.view, s=space.view: np.copyto(s[:-1], a.ravel()))
        issue(lambda o=out.view, s=space.view, shape=a.shape: np.copyto(o, function(s[:-1].reshape(shape))))
        return out

    return reduce


sum, mean, max, min, any, all, prod = map(_reduction, "sum mean max min any all prod".split())
amax, amin = max, min
ndarray.sum, ndarray.mean, ndarray.max, ndarray.any = sum, mean, max, any


def matmul(a, b):
    if cuda.get_current_stream().operations is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    return ufunc(np.matmul)(a, b)


def where(condition, x, y):
    return ufunc(np.where)(condition, x, y)


def clip(a, low, high):
    return ufunc(np.clip)(a, low, high)


def empty(shape, dtype=float, order="C"):
    return ndarray(shape if isinstance(shape, (tuple, list)) else (shape,), dtype, order=order)


def full(shape, value, dtype=None):
    out = empty(shape, np.asarray(value).dtype if dtype is None else dtype)
    out.fill(value)
    return out


def zeros(shape, dtype=float):
    return full(shape, 0, dtype)


def ones(shape, dtype=float):
    return full(shape, 1, dtype)


def array(x, order="C", copy=True):
    if isinstance(x, ndarray):
        return x.copy(order)
    cuda._no_capture("H2D")
    x = np.asarray(x)
    out = ndarray(x.shape, x.dtype, order=order)
    out.view[...] = x
    return out


asarray = array


def broadcast_to(a, shape):
    return _over(a, np.broadcast_to(a.view, shape))


def copyto(target, source, casting="same_kind"):
    a, b = target.view, _view(source)
    issue(lambda: np.copyto(a, b, casting="unsafe"))


def get_default_pinned_memory_pool():
    return cuda.PinnedMemoryPool()


class ElementwiseKernel:
    """Its operation is read as Python's: ``y = x * 2``."""

    def __init__(self, in_params, out_params, operation, name="kernel", reduce_dims=True, preamble="", **_):
        self.given, self.made = (
            [p.split()[-1] for p in text.split(",") if p.strip()] for text in (in_params, out_params)
        )
        self.kinds = [p.split()[0] for p in out_params.split(",") if p.strip()]
        self.code = compile(re.sub(r"^\s+", "", operation), name, "exec")

    def __call__(self, *arrays, size=None):
        if len(arrays) == len(self.given):
            made = [empty(arrays[0].shape, kind) for kind in self.kinds]
            self(*arrays, *made)
            return made[0]
        views = dict(zip([*self.given, *self.made], map(_view, arrays)))

        def work():
            names = dict(views)
            exec(self.code, {}, names)  # noqa: S102 - a test's own text
            for name in self.made:
                np.copyto(views[name], names[name], casting="unsafe")

        issue(work)
        return None


def __getattr__(name):
    found = getattr(np, name, None)
    if isinstance(found, np.ufunc):
        return ufunc(found)
    raise AttributeError(name)
