"""Zeros that take no memory before they are written."""

from __future__ import annotations

import re
from pathlib import Path

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
    tensor = zeros((1 << 30,), torch.uint8, CPU)
    tensor[12345] = 1
    assert 0 < resident_kib(tensor.data_ptr()) < 100 << 10


def resident_kib(address: int) -> int:
    """Return how much of the mapping that holds an address is in memory."""
    is_there = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            is_there = int(found[1], 16) <= address < int(found[2], 16)
        elif is_there and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError(f"no mapping holds {address:#x}")
