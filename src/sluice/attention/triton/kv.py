"""Pages for Triton: in plain order, in the dtype of the model or in eight bits with a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sluice.attention.base import LayerKV
from sluice.attention.triton.store import store_kv

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True)
class TritonKV(LayerKV):
    """Paged keys and values of one layer, each page dense."""

    k_scale: float = 1.0
    """What a stored key is multiplied by when it is read; 1 except for pages of eight bits."""
    v_scale: float = 1.0
    """What a stored value is multiplied by when it is read; 1 except for pages of eight bits."""

    def __post_init__(self) -> None:
        if self.k.dtype not in FP8_DTYPES and (self.k_scale, self.v_scale) != (1.0, 1.0):
            raise ValueError(f"scales of pages of {self.k.dtype} must be 1, got {self.k_scale} and {self.v_scale}")

    def store(self, kv_slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write as `PagedKV.store`. Rows of padding have a slot below 0 and are not written."""
        store_kv(
            kv_slots,
            _as_stored(k, self.k.dtype, self.k_scale),
            _as_stored(v, self.v.dtype, self.v_scale),
            self.k,
            self.v,
        )

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather as `PagedKV.gather`. Eight-bit pages come as the values that they stand for, in float32."""
        k, v = self.k[pages], self.v[pages]
        if self.k.dtype not in FP8_DTYPES:
            return k, v
        return k.float() * self.k_scale, v.float() * self.v_scale


def _as_stored(x: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Convert x to the dtype of the pages. What eight bits cannot hold becomes the largest value that they can."""
    if dtype not in FP8_DTYPES:
        return x.to(dtype)
    most = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-most, most).to(dtype)
