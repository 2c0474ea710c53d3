"""Attention of consecutive queries to consecutive older keys, of which a window hides the oldest, in plain torch."""

from __future__ import annotations

import torch

from sluice.attention.spec import AttentionSpec

MAX_SCORES = 1 << 22
"""Scores (heads x queries x keys) held at once."""


def attend_band(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: AttentionSpec,
    *,
    distance: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend each query to the keys less than `spec.window` positions before it.

    Args:
        q: [queries, heads, head_dim].
        k, v: [keys, kv_heads, head_dim], all of them older than the first query.
        spec: the layer's, with a window.
        distance: positions from the first key to the first query, at least the number of keys.

    Returns:
        out [queries, heads, head_dim] in float32 (float64 for float64 queries) and lse [queries, heads]; zeros and
        -inf for a query that sees nothing.
    """
    assert spec.window is not None, spec
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries, heads, head_dim = q.shape
    keys, kv_heads = k.shape[:2]
    k, v = k.to(compute).permute(1, 2, 0), v.to(compute).permute(1, 0, 2)
    out = torch.empty((queries, heads, head_dim), dtype=compute, device=q.device)
    lse = torch.empty((queries, heads), dtype=compute, device=q.device)
    step = max(1, MAX_SCORES // (heads * keys))
    for start in range(0, queries, step):
        part = q[start : start + step].to(compute)
        count = part.shape[0]
        grouped = part.view(count, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
        scores = (grouped.reshape(kv_heads, -1, head_dim) @ k) * (spec.scale * spec.k_scale)
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        behind = distance + start + torch.arange(count, device=q.device)[:, None] - torch.arange(keys, device=q.device)
        scores = scores.view(kv_heads, -1, count, keys).masked_fill(behind >= spec.window, -torch.inf)
        part_lse = scores.logsumexp(-1)
        weights = torch.exp(scores - part_lse.masked_fill(part_lse == -torch.inf, 0.0)[..., None]) * spec.v_scale
        mixed = weights.reshape(kv_heads, -1, keys) @ v
        out[start : start + step] = mixed.view(kv_heads, -1, count, head_dim).permute(2, 0, 1, 3).flatten(1, 2)
        lse[start : start + step] = part_lse.permute(2, 0, 1).flatten(1)
    return out, lse
