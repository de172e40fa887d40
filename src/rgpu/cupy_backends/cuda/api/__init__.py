"""The CUDA interfaces, under CuPy's second name for them."""

from rgpu.cuda import driver, runtime
