"""Triton kernels for CUDA devices of compute capability 8.0 and above.

With `TRITON_INTERPRET=1` set before the first import they run on a CPU, slowly, so that they can be tested without a
GPU. Importing a module of this package requires `triton`.
"""
