"""Kernels in Triton, for CUDA devices of compute capability 8.0 up.

With `TRITON_INTERPRET=1` set before the first import they run on a CPU, slowly: that is how they are tested without a
GPU. Importing any module below needs the package `triton`.
"""
