"""Arrays from and to files, buffers and iterables: done on the client, then uploaded.

A server never opens a file for a client. Reading is NumPy's; pickled objects are refused as
NumPy refuses them by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rgpu.functions import creation
from rgpu.functions.host import asnumpy

_READERS = "fromfile fromstring frombuffer fromiter loadtxt genfromtxt".split()
_ARCHIVES = "savez savez_compressed".split()


def _reader(name: str) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return creation.array(of_numpy(*args, **kwargs))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"See ``numpy.{name}``; the result is uploaded."
    return function


def _archiver(name: str) -> Callable[..., Any]:
    of_numpy = getattr(np, name)

    def function(file: Any, *args: Any, **kwds: Any) -> None:
        of_numpy(file, *map(asnumpy, args), **{key: asnumpy(x) for key, x in kwds.items()})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"See ``numpy.{name}``; arrays are fetched first."
    return function


class NpzFile:
    """An .npz archive whose arrays are uploaded when they are looked up."""

    def __init__(self, npz_file: Any) -> None:
        self.npz_file = npz_file

    def __enter__(self) -> NpzFile:
        self.npz_file.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.npz_file.__exit__(*exception)

    def __getitem__(self, key: str) -> Any:
        return creation.array(self.npz_file[key])

    def close(self) -> None:
        self.npz_file.close()


def load(file: Any, mmap_mode: Any = None, allow_pickle: Any = None) -> Any:
    """Read an .npy or .npz file and put it on the current device."""
    found = np.load(file, mmap_mode, bool(allow_pickle))
    if isinstance(found, np.ndarray):
        return creation.array(found)
    return NpzFile(found) if isinstance(found, np.lib.npyio.NpzFile) else found


def save(file: Any, arr: Any, allow_pickle: Any = None) -> None:
    np.save(file, asnumpy(arr), True if allow_pickle is None else allow_pickle)


def savetxt(fname: Any, X: Any, *args: Any, **kwargs: Any) -> None:
    np.savetxt(fname, asnumpy(X), *args, **kwargs)


def fill(names: dict[str, Any]) -> None:
    """Put the names of this room into a namespace."""
    names.update({name: _reader(name) for name in _READERS})
    names.update({name: _archiver(name) for name in _ARCHIVES})
    for function in (load, save, savetxt):
        names[function.__name__] = function
