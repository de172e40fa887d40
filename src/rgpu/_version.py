"""The one place where the version stands; the build reads it from here. Imports nothing."""

__version__ = "0.1.0"

#: the CuPy whose interface this is; what ``cupy.__version__`` says under ``rgpu run``
CUPY_VERSION = "14.2.0"
