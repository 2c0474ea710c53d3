"""Pages for Triton: as they read, in the dtype of the model or in eight bits with a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from sluice.attention.triton.store import store_kv

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class TritonKV:
    """Paged keys and values of one layer."""

    k: torch.Tensor
    """[pages, page_size, kv_heads, head_dim], each page dense"""
    v: torch.Tensor
    """As k."""
    k_scale: float = 1.0
    """What a stored key is multiplied by when it is read; 1 but for pages of eight bits."""
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.k.dtype not in FP8_DTYPES and (self.k_scale, self.v_scale) != (1.0, 1.0):
            raise ValueError(f"pages of {self.k.dtype} have no scales, got {self.k_scale} and {self.v_scale}")

    @classmethod
    def empty(
        cls, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Pages that were never written and may hold anything."""
        shape = (pages, page_size, kv_heads, head_dim)
        return cls(*(torch.empty(shape, dtype=dtype, device=device) for _ in range(2)))

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[2]

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """See `PagedKV.store`; a slot below 0 is a row of padding, and is not written."""
        store_kv(
            kv_slots,
            _as_stored(k, self.k.dtype, self.k_scale),
            _as_stored(v, self.v.dtype, self.v_scale),
            self.k,
            self.v,
        )

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `PagedKV.gather`; of eight-bit pages the values that they stand for, in float32."""
        k, v = self.k[pages], self.v[pages]
        if self.k.dtype not in FP8_DTYPES:
            return k, v
        return k.float() * self.k_scale, v.float() * self.v_scale


def _as_stored(x: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """x in the dtype of the pages. What eight bits cannot hold becomes the largest that they can, and stays no NaN."""
    if dtype not in FP8_DTYPES:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-most, most).to(dtype)
