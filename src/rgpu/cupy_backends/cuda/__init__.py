"""The lower half of ``cupy.cuda``, under CuPy's second name for it."""

from rgpu.cupy_backends.cuda import api, libs
