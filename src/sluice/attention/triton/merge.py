"""`merge_states` in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _merge(out, lse, out_a, lse_a, out_b, lse_b, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr):
    """One program a query and a head."""
    place = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, HEAD_PAD)
    held = dims < HEAD_DIM
    at = place * HEAD_DIM + dims
    log_a, log_b = tl.load(lse_a + place), tl.load(lse_b + place)
    peak = tl.maximum(log_a, log_b)
    reference = tl.where(peak == float("-inf"), 0.0, peak)
    weight_a, weight_b = tl.exp(log_a - reference), tl.exp(log_b - reference)
    total = weight_a + weight_b
    # What has no weight may hold anything, NaN too: it is not read.
    a = tl.load(out_a + at, mask=tl.where(held, weight_a, 0.0) > 0.0, other=0.0).to(tl.float32)
    b = tl.load(out_b + at, mask=tl.where(held, weight_b, 0.0) > 0.0, other=0.0).to(tl.float32)
    is_empty = total == 0.0
    merged = (a * weight_a + b * weight_b) / tl.where(is_empty, 1.0, total)
    tl.store(out + at, merged.to(out.dtype.element_ty), mask=held)
    tl.store(lse + place, tl.where(is_empty, float("-inf"), reference + tl.log(tl.where(is_empty, 1.0, total))))


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge as `sluice.attention.merge.merge_states`, for float32 and smaller, in one pass over the parts.

    Raises:
        TypeError: float64 parts.
    """
    if torch.float64 in (out_a.dtype, lse_a.dtype):
        raise TypeError("Triton merges float32, float16 and bfloat16, got float64: use sluice.attention.merge")
    out_a, lse_a, out_b, lse_b = (part.contiguous() for part in (out_a, lse_a, out_b, lse_b))
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    head_dim = out.shape[-1]
    if lse.numel():
        _merge[(lse.numel(),)](
            out,
            lse,
            out_a,
            lse_a,
            out_b,
            lse_b,
            HEAD_DIM=head_dim,
            HEAD_PAD=triton.next_power_of_2(head_dim),
            num_warps=1,
        )
    return out, lse
