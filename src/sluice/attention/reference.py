"""Attention in plain torch over gathered pages, on any device and dtype: what all other backends are tested against.

The pages of a row are gathered into one contiguous run of keys. Rows of several queries are computed one by one, their
queries in slices; decodes are computed together, padded to the longest. Either way the number of scores held at once is
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

import torch

from sluice.attention.backend import AttentionBackend
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.int8 import Int8KV
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.kernels.cpu.library import Kernels

MAX_SCORES = 1 << 22
"""Scores (heads x queries x keys) held at once: 16 MiB in float32."""
FREE_PADDING = 64
"""Keys of padding that cost less than another group of decode rows."""


class ReferenceAttention(Attention):
    """The implementation that all others are compared with.

    Scores, softmax and sums are float32 (float64 for float64 queries), for any dtype of the pages.
    Without `causal`, a `window` still hides the keys older than `window` positions and nothing newer.

    Args:
        max_scores: bound on the scores held at once; at least one query against its own keys is always held.
        tick: called for each such part of the work, so that a long layer gives signs of life.
    """

    def __init__(self, max_scores: int = MAX_SCORES, tick: Callable[[], None] = lambda: None) -> None:
        if max_scores < 1:
            raise ValueError(f"max_scores must be at least 1, got {max_scores}")
        self.max_scores = max_scores
        self._tick = tick

    def attend(
        self, q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        compute = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = q.new_zeros(q.shape)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=compute, device=q.device)
        self._attend_decodes(q, kv, batch, spec, out, lse)
        start = batch.num_decodes
        for row in range(batch.num_decodes, len(batch.q_lens)):
            end = start + batch.q_lens[row]
            self._attend_row(q[start:end], kv, batch, row, spec, out[start:end], lse[start:end])
            start = end
        return out, lse if need_lse else None

    def _attend_row(
        self,
        q: torch.Tensor,
        kv: PagedKV,
        batch: ForwardBatch,
        row: int,
        spec: AttentionSpec,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """Compute one row of any number of queries into `out` [q_len, heads, head_dim] and `lse` [q_len, heads]."""
        q_len, kv_len = q.shape[0], batch.kv_lens_host[row]
        if not kv_len:
            return
        k, v = kv.gather(batch.page_table[row, : _pages(kv_len, kv.page_size)])
        k = k.flatten(0, 1)[:kv_len].to(lse.dtype)
        v = v.flatten(0, 1)[:kv_len].to(lse.dtype)
        first_position = kv_len - q_len
        step = max(1, self.max_scores // (q.shape[1] * kv_len))
        for start in range(0, q_len, step):
            self._tick()
            end = min(q_len, start + step)
            low, high = _key_range(spec, first_position + start, first_position + end - 1, kv_len)
            if low == high:
                continue
            q_pos = torch.arange(first_position + start, first_position + end, device=q.device)
            k_pos = torch.arange(low, high, device=q.device)
            seen = _visible(spec, q_pos[None, :, None], k_pos)
            part, part_lse = _softmax_attention(q[None, start:end], k[None, low:high], v[None, low:high], seen, spec)
            out[start:end] = part[0]
            lse[start:end] = part_lse[0]

    def _attend_decodes(
        self,
        q: torch.Tensor,
        kv: PagedKV,
        batch: ForwardBatch,
        spec: AttentionSpec,
        out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """Compute the first `num_decodes` rows, whose one query is the token of the same index."""
        # Gathered keys are the larger part when there are few query heads for each of them.
        per_key = max(q.shape[1], kv.kv_heads * q.shape[2])
        for group in _groups(batch.kv_lens_host[: batch.num_decodes], self.max_scores // per_key):
            self._tick()
            longest = batch.kv_lens_host[group[-1]]
            rows = torch.tensor(group, device=q.device)
            out[rows], lse[rows] = _attend_padded(q[rows], kv, batch, rows, longest, spec, lse.dtype)


def _groups(kv_lens: Sequence[int], max_keys: int) -> Iterator[list[int]]:
    """Yield groups of rows to pad to one length: nearly equal, at most `max_keys` with padding, shortest first.

    Rows without keys are in no group. A row of more than `max_keys` is a group of its own.
    """
    group: list[int] = []
    for row in sorted((i for i, length in enumerate(kv_lens) if length), key=kv_lens.__getitem__):
        length = kv_lens[row]
        if group and (length > 2 * kv_lens[group[0]] + FREE_PADDING or length * (len(group) + 1) > max_keys):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _attend_padded(
    q: torch.Tensor,
    kv: PagedKV,
    batch: ForwardBatch,
    rows: torch.Tensor,
    longest: int,
    spec: AttentionSpec,
    compute: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend one query for each of `rows`, keys padded to `longest`.

    Returns:
        out [rows, heads, head_dim] and lse [rows, heads].
    """
    k, v = kv.gather(batch.page_table[rows][:, : _pages(longest, kv.page_size)])
    k = k.flatten(1, 2)[:, :longest].to(compute)
    v = v.flatten(1, 2)[:, :longest].to(compute)
    kv_lens = batch.kv_lens[rows][:, None, None]
    k_pos = torch.arange(longest, device=q.device)
    seen = _visible(spec, kv_lens - 1, k_pos) & (k_pos < kv_lens)
    # A page past the row's end may hold anything, and 0 x NaN is NaN.
    v = v.masked_fill(~seen[:, 0, :, None, None], 0.0)
    out, lse = _softmax_attention(q[:, None], k, v, seen, spec)
    return out[:, 0], lse[:, 0]


def _softmax_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, spec: AttentionSpec
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend for one group of rows with equal lengths.

    Args:
        q: [rows, queries, heads, head_dim].
        k, v: [rows, keys, kv_heads, head_dim], in the dtype to compute in.
        seen: bool, [rows, queries, keys].

    Returns:
        out [rows, queries, heads, head_dim] in q's dtype, lse [rows, queries, heads].
    """
    rows, queries, heads, head_dim = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = q.to(k.dtype).view(rows, queries, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    scores = grouped.reshape(rows, kv_heads, group * queries, head_dim) @ k.permute(0, 2, 3, 1)
    scores *= spec.scale * spec.k_scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.view(rows, kv_heads, group, queries, keys)
    scores.masked_fill_(~seen[:, None, None], -torch.inf)
    top = scores.amax(-1, keepdim=True)
    # A query that sees nothing has top = -inf; with any finite reference its weights and their sum are 0.
    top.masked_fill_(top == -torch.inf, 0.0)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    lse = (top + torch.log(total)).squeeze(-1)
    weights *= spec.v_scale / total.masked_fill(total == 0, 1.0)
    mixed = weights.view(rows, kv_heads, group * queries, keys) @ v.permute(0, 2, 1, 3)
    out = mixed.view(rows, kv_heads, group, queries, head_dim).permute(0, 3, 1, 2, 4)
    return (
        out.reshape(rows, queries, heads, head_dim).to(q.dtype),
        lse.permute(0, 3, 1, 2).reshape(rows, queries, heads),
    )


def _visible(spec: AttentionSpec, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
    """Return the mask of keys that queries see: bool, of the broadcast shape of the two position tensors."""
    seen = torch.ones_like(k_pos - q_pos, dtype=torch.bool)
    if spec.causal:
        size = spec.block_size or 1
        seen &= k_pos < (q_pos // size + 1) * size
    if spec.window is not None:
        seen &= k_pos > q_pos - spec.window
    return seen


def _key_range(spec: AttentionSpec, first: int, last: int, kv_len: int) -> tuple[int, int]:
    """Return the span of keys that queries at positions `first`..`last` see between them."""
    low = 0 if spec.window is None else max(0, first - spec.window + 1)
    high = min(kv_len, spec.end_of_block(last)) if spec.causal else kv_len
    return low, max(low, high)


def _pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


class ReferenceBackend(AttentionBackend):
    """Plain torch, on any device."""

    name = "reference"
    kv_dtypes = MappingProxyType({"int8": torch.int8})

    def new_kv(self, shape: KVShape, kernels: Kernels | None) -> PagedKV:
        return Int8KV.empty(shape) if shape.dtype == torch.int8 else super().new_kv(shape, kernels)

    def make(self, device: torch.device, kernels: Kernels | None, tick: Callable[[], None]) -> Attention:
        return ReferenceAttention(tick=tick)
