"""Runs at the start of every Python inside `rgpu run`, which puts this folder first on PYTHONPATH.

Installs the alias finder and nothing else (rgpu itself is imported when somebody imports cupy), then hands
over to the sitecustomize that this file hides, if there is one. Every import here is paid by every
interpreter: importlib.util alone would double the time this takes, so modules are made by hand.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

HERE = os.path.dirname(os.path.abspath(__file__))


def _load(spec):
    module = type(sys)(spec.name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _install_alias():
    # Under its own name: a later `import rgpu.alias` must find this very module, with the finder it made.
    path = os.path.join(os.path.dirname(HERE), "alias.py")
    _load(ModuleSpec("rgpu.alias", SourceFileLoader("rgpu.alias", path), origin=path)).install()


def _run_hidden_sitecustomize():
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        _load(spec)


_install_alias()
_run_hidden_sitecustomize()
