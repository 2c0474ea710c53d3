"""Attention over all keys, merged from attention over parts of them.

Softmax attention of one query over disjoint sets of keys is the average of the partial results weighted by
`exp(lse)`; the log-sum-exp of the whole is the log of the summed weights ("Online normalizer calculation for
softmax", Milakov and Gimelshein, 2018; used for split KV by FlashAttention and FlashInfer).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

MERGED_ROWS = 64
"""Rows of partial results that `Partials` merges at once."""


class Partials:
    """Partial attention results over disjoint keys, merged a few at a time: to merge many with one row takes as many
    calls of torch as to merge two."""

    def __init__(self) -> None:
        self._outs: list[torch.Tensor] = []
        self._lses: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._outs)

    def add(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Add a result, as for `merge_states`; all of them have one shape and one dtype."""
        self._outs.append(out)
        self._lses.append(lse)
        if len(self._outs) > 1 and len(self._outs) * out.shape[0] > MERGED_ROWS:
            out, lse = self.merged()
            self._outs, self._lses = [out], [lse]

    def merged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the result over all keys; one must have been added."""
        if len(self._outs) == 1:
            return self._outs[0], self._lses[0]
        if len(self._outs) == 2:
            return merge_states(self._outs[0], self._lses[0], self._outs[1], self._lses[1])
        return _merge_all(self._outs, self._lses)


def merge_states(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge two partial attention results over disjoint keys.

    Args:
        out_a, out_b: [..., heads, head_dim], of one dtype.
        lse_a, lse_b: [..., heads], natural log; -inf where the part saw no key, whose `out` is not read.

    Returns:
        out [..., heads, head_dim] in the dtype of the inputs, and lse [..., heads] in float32 (float64 for
        float64 inputs). Two empty parts give zeros and -inf.
    """
    if _one_kernel_merges(out_a, lse_a):
        # Importing it needs the package, which machines without a GPU need not have.
        from sluice.attention.triton import merge as in_one_kernel

        return in_one_kernel.merge_states(out_a, lse_a, out_b, lse_b)
    compute = torch.float64 if out_a.dtype == torch.float64 else torch.float32
    lse_a, lse_b = lse_a.to(compute), lse_b.to(compute)
    top = torch.maximum(lse_a, lse_b)
    # Both parts empty: -inf - -inf would be NaN, so any finite reference does.
    top = top.masked_fill(top == -torch.inf, 0.0)
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)
    total = weight_a + weight_b
    share_a = _share(out_a.to(compute), weight_a, total)
    share_b = _share(out_b.to(compute), weight_b, total)
    return (share_a + share_b).to(out_a.dtype), top + torch.log(total)


def _merge_all(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge as `merge_states`, but any number of results."""
    compute = torch.float64 if outs[0].dtype == torch.float64 else torch.float32
    lse = torch.stack([each.to(compute) for each in lses])
    total = torch.logsumexp(lse, dim=0)
    weight = torch.exp(lse - total.masked_fill(total == -torch.inf, 0.0)).unsqueeze(-1)
    out = torch.where(weight > 0, torch.stack([each.to(compute) for each in outs]) * weight, 0.0)
    return out.sum(dim=0).to(outs[0].dtype), total


def _one_kernel_merges(out: torch.Tensor, lse: torch.Tensor) -> bool:
    """Return whether Triton merges: in one pass over the parts, where torch launches a dozen kernels."""
    if out.device.type != "cuda" or torch.float64 in (out.dtype, lse.dtype) or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(out.device) >= (8, 0)


def _share(out: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return `out * weight / total`, and 0 wherever the weight is 0, even if `out` is NaN there."""
    part = (weight / total).unsqueeze(-1)
    return torch.where(weight.unsqueeze(-1) > 0, out * part, 0.0)
