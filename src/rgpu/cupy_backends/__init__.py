"""``cupy_backends``: where CuPy keeps its lower half; the same modules as ``rgpu.cuda``."""
