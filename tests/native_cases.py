"""Random batches for the attention of the compiled kernels, and what is exact about them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch

from compiled import TILES, all_kernels
from paged import Row, forward_batch
from sluice.attention.base import ForwardBatch, LayerKV
from sluice.attention.int8 import PackedInt8KV
from sluice.attention.native import NativeAttention, NativeBackend
from sluice.attention.packed import PackedKV
from sluice.attention.reference import ReferenceAttention
from sluice.attention.spec import AttentionSpec, KVShape
from sluice.kernels.cpu.library import Kernels

KERNELS = all_kernels()
FASTEST = max((kernels for kernels in KERNELS if kernels.level not in TILES), key=lambda kernels: kernels.level)
MIXED = [(1, 900), (1, 31), (1, 0), (1, 513), (30, 600), (2, 2), (70, 1100), (17, 17)]
"""(q_len, kv_len) of rows, decodes first."""


@dataclass(frozen=True)
class Case:
    """A random ragged batch over shuffled pages; memory that no row owns is NaN."""

    q: torch.Tensor
    k: tuple[torch.Tensor, ...]
    """Of each row, [kv_len, kv_heads, head_dim]."""
    v: tuple[torch.Tensor, ...]
    pages: tuple[tuple[int, ...], ...]
    page_size: int
    batch: ForwardBatch
    kv_dtype: torch.dtype

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    def rows(self, *chosen: int) -> Case:
        """Some of the rows, as a batch of their own."""
        parts = self.q.split(self.batch.q_lens)
        lengths = [(self.batch.q_lens[row], self.batch.kv_lens_host[row], self.pages[row]) for row in chosen]
        return replace(
            self,
            q=torch.cat([parts[row] for row in chosen]),
            k=tuple(self.k[row] for row in chosen),
            v=tuple(self.v[row] for row in chosen),
            pages=tuple(self.pages[row] for row in chosen),
            batch=forward_batch([row_of(*each) for each in lengths], self.page_size),
        )

    def spec(self, **rule: Any) -> AttentionSpec:
        """The spec of its layer, by a rule."""
        return AttentionSpec.of(self.q, self.k[0].shape[1], self.scale, **rule)

    def packed(self, kernels: Kernels) -> PackedKV | PackedInt8KV:
        count = 1 + max((page for pages in self.pages for page in pages), default=0)
        shape = KVShape(count, self.page_size, *self.k[0].shape[1:], self.kv_dtype, torch.device("cpu"))
        kv = NativeBackend().new_kv(shape, kernels)
        for pages in (kv.k, kv.v):
            pages.fill_(-1 if self.kv_dtype == torch.int8 else torch.nan)  # a scale of ones in every bit is NaN
        for own, k, v in zip(self.pages, self.k, self.v, strict=True):
            positions = torch.arange(k.shape[0])
            places = torch.tensor(own, dtype=torch.int64)[positions // self.page_size] if len(k) else positions
            kv.store(places * self.page_size + positions % self.page_size, k, v)
        return kv


def row_of(q_len: int, kv_len: int, pages: tuple[int, ...]) -> Row:
    return Row([0] * q_len, max(0, kv_len - q_len), pages or (0,), kv_len)


def make_case(
    seed: int,
    lengths: list[tuple[int, int]],
    *,
    group: int = 2,
    kv_heads: int = 2,
    head_dim: int = 64,
    page_size: int = 32,
    dtype: torch.dtype = torch.bfloat16,
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Args: lengths: (q_len, kv_len) of each row, decodes first. kv_dtype: of the pages; None: `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-kv_len // page_size) for _, kv_len in lengths]
    order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
    pages = [tuple(order.pop() for _ in range(count)) for count in needed]

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(dtype)

    return Case(
        q=draw(sum(q_len for q_len, _ in lengths), kv_heads * group, head_dim),
        k=tuple(draw(kv_len, kv_heads, head_dim) for _, kv_len in lengths),
        v=tuple(draw(kv_len, kv_heads, head_dim) for _, kv_len in lengths),
        pages=tuple(pages),
        page_size=page_size,
        batch=forward_batch([row_of(*length, own) for length, own in zip(lengths, pages, strict=True)], page_size),
        kv_dtype=kv_dtype or dtype,
    )


def attend(case: Case, kernels: Kernels, **rule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = NativeAttention(kernels).attend(
        case.q, case.packed(kernels), case.batch, case.spec(**rule), need_lse=True
    )
    assert lse is not None
    assert out.dtype == case.q.dtype
    return out, lse


def exact(case: Case, **rule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, from the same inputs."""
    kv = case.packed(FASTEST)
    plain = LayerKV(*(part.double() for part in kv.gather(torch.arange(kv.k.shape[0]))))
    out, lse = ReferenceAttention().attend(case.q.double(), plain, case.batch, case.spec(**rule), need_lse=True)
    assert lse is not None
    return out, lse


def ragged(draw: random.Random) -> list[tuple[int, int]]:
    """Lengths around pages, blocks and splits; rows without any key, prompts without a prefix."""

    def keys() -> int:
        return max(0, draw.choice((0, 16, 32, 64, 128, 256, 512)) + draw.choice((-1, 0, 1, draw.randint(1, 40))))

    decodes = [(1, keys()) for _ in range(draw.randint(0, 3))]
    extends = [(draw.randint(2, 13), keys()) for _ in range(draw.randint(0, 2))]
    fresh = [(length, length) for length in draw.sample(range(2, 40), draw.randint(0, 1))]
    return decodes + extends + fresh or [(1, 1)]


def root_mean_square(error: torch.Tensor) -> float:
    return float(error.double().pow(2).mean().sqrt())
