"""`upper_bounds` of Quest for a CPU with compiled kernels."""

from __future__ import annotations

import torch

from sluice.kernels.cpu.abi import PageBoundsCall
from sluice.kernels.cpu.library import Kernels
from sluice.runner.offload.quest import torch_upper_bounds

LANES = 16
"""Components that a kernel takes at once."""
KERNEL_DTYPES = (torch.bfloat16, torch.float32)


class NativeUpperBounds:
    """Computes bounds of scores by a compiled kernel on all threads, which reads bounds of bfloat16 as they are."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def __call__(self, q: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
        """Return what `torch_upper_bounds` does."""
        pages, _, kv_heads, head_dim = bounds.shape
        if bounds.dtype not in KERNEL_DTYPES or head_dim % LANES:
            return torch_upper_bounds(q, bounds)
        q, bounds = q.contiguous(), bounds.contiguous()
        upper = torch.empty((kv_heads, q.shape[1], pages))
        call = PageBoundsCall(
            bounds=bounds.data_ptr(),
            q=q.data_ptr(),
            upper=upper.data_ptr(),
            pages=pages,
            kv_heads=kv_heads,
            queries=q.shape[1],
            head_dim=head_dim,
            is_bf16=bounds.dtype == torch.bfloat16,
        )
        self._kernels.bound_pages(call)
        return upper
