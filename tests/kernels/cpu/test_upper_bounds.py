"""Bounds of scores by the compiled kernel: what torch computes, at every level, in every shape."""

from __future__ import annotations

import pytest
import torch

from compiled import all_kernels, level_name
from sluice.kernels.cpu.library import Kernels
from sluice.runner.offload.native_upper_bounds import NativeUpperBounds
from sluice.runner.offload.quest import torch_upper_bounds


def case(pages: int, kv_heads: int, queries: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Queries and the bounds of pages; those of the pages before and behind are not numbers."""
    random = torch.Generator().manual_seed(pages + head_dim)
    q = torch.randn(kv_heads, queries, head_dim, generator=random)
    keys = torch.randn(pages, 3, kv_heads, head_dim, generator=random)
    room = torch.full((pages + 4, 2, kv_heads, head_dim), float("nan"), dtype=dtype)
    room[2:-2] = torch.stack((keys.amin(1), keys.amax(1)), 1)
    return torch.stack((q.clamp(max=0), q.clamp(min=0)), 2), room[2:-2]


@pytest.mark.parametrize("kernels", all_kernels(), ids=level_name)
@pytest.mark.parametrize(
    ("pages", "kv_heads", "queries", "head_dim", "dtype"),
    [
        (1, 1, 1, 16, torch.float32),
        (999, 2, 3, 64, torch.bfloat16),
        (130, 8, 4, 128, torch.float32),
        (70, 4, 5, 80, torch.bfloat16),
        (70, 2, 2, 20, torch.bfloat16),  # no whole number of lanes
        (70, 2, 2, 64, torch.float16),  # no kernel
    ],
)
def test_kernels_bound_scores_as_torch_does(
    kernels: Kernels, pages: int, kv_heads: int, queries: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Other pages would be selected than the options name."""
    q, bounds = case(pages, kv_heads, queries, head_dim, dtype)
    found = NativeUpperBounds(kernels)(q, bounds)
    torch.testing.assert_close(found, torch_upper_bounds(q, bounds), rtol=1e-5, atol=1e-4)
