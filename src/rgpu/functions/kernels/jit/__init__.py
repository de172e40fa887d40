"""From Python to CUDA C++: the functions of ``cupyx.jit`` kernels and of ``cupy.vectorize``.

A function's source is read on the client and translated for the types of its arguments; only the C++ text
travels. What cannot be translated is refused, by line. Must not touch devices.
"""
