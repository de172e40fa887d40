"""CUDA's libraries, under CuPy's second name for them."""

from rgpu.cuda import cublas, curand, cusolver, cusparse, cutensor, nccl, nvrtc, nvtx
