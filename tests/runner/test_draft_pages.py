"""Zeros that take no memory before they are written."""

from __future__ import annotations

import resource

import pytest
import torch

from sluice.runner.drafting.pages import ALIGNMENT, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_they_are_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    tensor = zeros((3, 5), dtype, CPU)
    assert (tensor.shape, tensor.dtype) == ((3, 5), dtype)
    assert tensor.data_ptr() % ALIGNMENT == 0
    assert tensor.untyped_storage().nbytes() == 15 * dtype.itemsize
    assert not tensor.any()
    tensor[1, 2] = 7
    assert tensor.sum() == 7
    assert zeros((4, 0), dtype, CPU).numel() == 0


def test_a_large_pool_takes_what_is_used_of_it() -> None:
    """The pages of a drafter are as many as its target's, most of which are never used."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = zeros((1 << 30,), torch.uint8, CPU)
    tensor[12345] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB
