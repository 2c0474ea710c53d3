"""Memory that is asked for in huge pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sluice.huge_pages import HUGE, in_huge_pages

SMAPS = Path("/proc/self/smaps")


def flags_at(address: int) -> list[str]:
    """Of the mapping that holds an address: two letters each."""
    is_inside = False
    for line in SMAPS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            is_inside = start <= address < end
        elif is_inside and first == "VmFlags:":
            return rest.split()
    raise AssertionError(f"{address:x} is in no mapping")


@pytest.mark.skipif(not SMAPS.exists(), reason="tells of Linux's mappings")
def test_the_inside_of_a_large_tensor_is_asked_for() -> None:
    """Its first and last partial pages are others' too, and must stay as they are."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages")
    tensor = torch.empty(4 * HUGE + 12345, dtype=torch.uint8)
    assert in_huge_pages(tensor) is tensor
    first = -(-tensor.data_ptr() // HUGE) * HUGE
    last = (tensor.data_ptr() + tensor.nbytes) // HUGE * HUGE - 1
    assert "hg" in flags_at(first)
    assert "hg" in flags_at(last)
    assert "hg" not in flags_at(first - 1)
    assert "hg" not in flags_at(last + 1)


@pytest.mark.parametrize("size", [0, 1, HUGE - 1])
def test_small_tensors_are_left_alone(size: int) -> None:
    tensor = torch.empty(size, dtype=torch.uint8)
    assert in_huge_pages(tensor) is tensor
