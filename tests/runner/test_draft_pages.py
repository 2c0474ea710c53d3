"""Zeros that take no memory before they are written."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from sluice.runner.drafting.pages import zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_they_are_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    tensor = zeros((3, 5), dtype, CPU)
    assert (tensor.shape, tensor.dtype) == ((3, 5), dtype)
    assert tensor.data_ptr() % 64 == 0, "as torch aligns its own tensors"
    assert tensor.untyped_storage().nbytes() == 15 * dtype.itemsize
    assert not tensor.any()
    tensor[1, 2] = 7
    assert tensor.sum() == 7
    assert zeros((4, 0), dtype, CPU).numel() == 0


def test_a_large_pool_takes_what_is_used_of_it() -> None:
    """The pages of a drafter are as many as its target's, most of which are never used."""
    size = 1 << 30
    tensor = zeros((size,), torch.uint8, CPU)
    tensor[12345] = 1
    resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(size), resident) == 0
    assert 0 < sum(each & 1 for each in resident) * mmap.PAGESIZE < 100 << 20
