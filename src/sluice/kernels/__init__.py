"""Compiled code: `cpu` for processors, `triton` for CUDA devices."""
