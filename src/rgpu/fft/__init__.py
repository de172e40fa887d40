"""``cupy.fft``: transforms, filled from the table of functions, and their plans."""

import sys
from importlib.machinery import ModuleSpec

from rgpu.fft import transforms
from rgpu.fft.settings import config as config
from rgpu.functions import namespace

namespace.fill(globals(), "cupy.fft")
globals().update(transforms.names())

config.__spec__ = ModuleSpec("rgpu.fft.config", None)  # programs write ``import cupy.fft.config as config``, too
sys.modules["rgpu.fft.config"] = config  # type: ignore[assignment]
