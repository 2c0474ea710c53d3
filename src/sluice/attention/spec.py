"""What is constant in one layer's attention, and the sizes of the pages it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch

SCALE_BYTES = 4
"""Bytes of the scale, in float32, of a token's key or value of one KV head, beside int8."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """How one layer attends. Models build one for each layer, once.

    Raises:
        ValueError: the query heads are no multiple of the KV heads, the window or the block is below 1, or there are
            blocks beside a window or without `causal`.
    """

    num_heads: int
    num_kv_heads: int
    """Each serves `num_heads / num_kv_heads` query heads (GQA)."""
    head_dim: int
    dtype: torch.dtype
    """Dtype of queries and outputs."""
    scale: float
    """Factor of q.k."""
    causal: bool = True
    """A row's query i (position `kv_len - q_len + i`) sees positions up to its own; otherwise all."""
    window: int | None = None
    """A query sees at most this many of the latest positions, its own included. None: all."""
    block_size: int | None = None
    """Positions in a block. With `causal`, a query sees all of its own block, as far as there are keys (block
    diffusion: Arriola et al., 2025). None: blocks of one position."""
    softcap: float | None = None
    """Scores become `softcap * tanh(score / softcap)`."""
    k_scale: float = 1.0
    """Dequantisation factor of keys."""
    v_scale: float = 1.0
    """Dequantisation factor of values."""

    @classmethod
    def of(cls, q: torch.Tensor, num_kv_heads: int, scale: float, **rest: Any) -> Self:
        """Return the spec of queries [N, heads, head_dim]. `rest` are further fields."""
        return cls(q.shape[1], num_kv_heads, q.shape[2], q.dtype, scale, **rest)

    def __post_init__(self) -> None:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if heads % kv_heads:
            raise ValueError(f"query heads must be a multiple of the KV heads, got {heads} and {kv_heads}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 position, got {self.window}")
        if self.block_size is not None:
            if self.block_size < 1:
                raise ValueError(f"a block must have at least 1 position, got {self.block_size}")
            if not self.causal or self.window is not None:
                raise ValueError(
                    f"blocks of {self.block_size} need causal attention without a window,"
                    f" got causal {self.causal}, window {self.window}"
                )

    def end_of_block(self, position: int) -> int:
        """Return the position behind the block in which a position is."""
        size = self.block_size or 1
        return (position // size + 1) * size


class LayerHeads(NamedTuple):
    """The heads of one layer's keys and values."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class KVShape:
    """Sizes of one layer's pages."""

    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Dtype of the numbers in a page; int8 pages have scales beside them."""
    device: torch.device


def scale_bytes(dtype: torch.dtype) -> int:
    """Return the bytes of scales that pages of a dtype hold for a token's key, or value, of one KV head."""
    return SCALE_BYTES if dtype == torch.int8 else 0


def stored_as(dtype: torch.dtype) -> str:
    """Return what pages of a dtype hold, in words: pages of another release may hold it otherwise."""
    name = str(dtype).removeprefix("torch.")
    return f"{name}, keys rotated" if dtype == torch.int8 else name
