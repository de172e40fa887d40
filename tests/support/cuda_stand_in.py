"""The cupy backend over a stand-in for CuPy, for tests without a card."""

import contextlib
import importlib
import sys
from pathlib import Path

FOLDER = str(Path(__file__).parent / "stand_in")
_OURS = ("rgpu.server.backend_cupy", "rgpu.server.cupy_")


def _taken():
    """Its modules, out of reach."""
    names = [n for n in sys.modules if n.split(".")[0] in ("cupy", "cupyx") or n.startswith(_OURS)]
    package = sys.modules["rgpu.server"]
    for name in names:
        if name.startswith(_OURS):
            vars(package).pop(name.rpartition(".")[2], None)
    return {name: sys.modules.pop(name) for name in names}


@contextlib.contextmanager
def installed():
    """``rgpu.server.backend_cupy`` as it is with the stand-in, known to nobody else."""
    import rgpu.server as package

    before = _taken()
    sys.path.insert(0, FOLDER)
    try:
        yield importlib.import_module("rgpu.server.backend_cupy")
    finally:
        sys.path.remove(FOLDER)
        _taken()
        sys.modules.update(before)
        for name, module in before.items():
            if name.startswith(_OURS):
                setattr(package, name.rpartition(".")[2], module)
