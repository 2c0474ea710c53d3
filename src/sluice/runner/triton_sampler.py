"""`sampler.sample` by Triton's kernels: a few launches for all kinds of rows, and nothing sorted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.runner import sampler
from sluice.runner.sampler import SLICE_ELEMENTS, RowGroup, RowKind, SamplingRows
from sluice.triton.sampling import sample_rows

RANKED = (RowKind.SHORT, RowKind.FULL)


def sample(logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
    """See `sampler.sample`; float64 is left to torch."""
    if logits.dtype == torch.float64:
        return sampler.sample(logits, params, groups)
    ranked = [group.rows for group in groups if group.kind in RANKED]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    return sample_rows(
        logits,
        params.temperature,
        params.min_p,
        params.top_k,
        params.top_p,
        params.streams,
        params.positions,
        torch.cat(ranked) if ranked else None,
        max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1]),
    )
