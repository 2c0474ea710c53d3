"""Random ragged batches over shuffled pages, and what their attention comes to in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from paged import Row, empty_kv, forward_batch
from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec


@dataclass(frozen=True)
class Case:
    """Every page and position that no row owns is NaN."""

    q: torch.Tensor
    kv: LayerKV
    batch: ForwardBatch

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    def spec(self, **rule: Any) -> AttentionSpec:
        """The spec of its layer, by a rule."""
        return AttentionSpec.of(self.q, self.kv.kv_heads, **{"scale": self.scale, **rule})

    def to(self, device: torch.device) -> Case:
        batch = {
            name: getattr(self.batch, name).to(device)
            for name in ("input_ids", "positions", "kv_slots", "page_table", "q_starts", "kv_lens", "logit_rows")
        }
        kv = LayerKV(self.kv.k.to(device), self.kv.v.to(device))
        return Case(self.q.to(device), kv, replace(self.batch, **batch))


def make_case(
    seed: int,
    lengths: list[tuple[int, int]],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Args: lengths: (q_len, kv_len) of each row, decodes first."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-kv_len // page_size) for _, kv_len in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    kv = empty_kv(len(order), page_size, kv_heads, head_dim, dtype)
    rows = []
    for (q_len, kv_len), count in zip(lengths, needed, strict=True):
        pages = [order.pop() for _ in range(count)]
        rows.append(Row([0] * q_len, max(0, kv_len - q_len), pages, kv_len))
        slots = torch.tensor([pages[p // page_size] * page_size + p % page_size for p in range(kv_len)]).long()
        shape = (2, kv_len, kv_heads, head_dim)
        k, v = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        kv.store(slots, k, v)
    batch = forward_batch(rows, page_size)
    q = torch.randn(sum(batch.q_lens), heads, head_dim, generator=generator, dtype=torch.float64)
    return Case(q.to(dtype), kv, batch)


def exact(case: Case, **rule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """By the reference, everything in float64 on the CPU."""
    there = case.to(torch.device("cpu"))
    kv = LayerKV(there.kv.k.double(), there.kv.v.double())
    out, lse = ReferenceAttention().attend(there.q.double(), kv, there.batch, case.spec(**rule), need_lse=True)
    assert lse is not None
    return out, lse
