"""What a plan depends on beside the step: layers that agree on it share their plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sluice.attention.base import LayerKV, PagedKV

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)


class LayerKind(NamedTuple):
    """Sizes and rules of a layer's attention."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    causal: bool
    window: int | None
    softcap: float | None

    @property
    def sizes(self) -> dict[str, int]:
        """As `plan` takes them."""
        return {"num_qo_heads": self.heads, "num_kv_heads": self.kv_heads, "page_size": self.page_size}

    @property
    def rules(self) -> dict[str, Any]:
        """As `plan` takes them. FlashInfer's window counts the positions to the left, ours the query's own, too."""
        return {
            "sm_scale": self.scale,
            "window_left": -1 if self.window is None else self.window - 1,
            "logits_soft_cap": self.softcap or 0.0,
            "q_data_type": self.q_dtype,
            "kv_data_type": self.kv_dtype,
        }

    @property
    def suits_tensor_cores(self) -> bool:
        """A decode whose query heads of one KV head fill a tile well enough."""
        return self.heads // self.kv_heads > 2


def layer_kind(
    q: torch.Tensor, kv: PagedKV, *, scale: float, causal: bool, window: int | None, softcap: float | None
) -> LayerKind:
    """
    Raises:
        TypeError: pages of another layout, or queries of a dtype that FlashInfer does not take.
        ValueError: a head size that it does not take, heads that do not fit, or a window below 1.
    """
    if not isinstance(kv, LayerKV):
        raise TypeError(f"FlashInfer reads LayerKV, got {type(kv).__name__}")
    if q.dtype not in DTYPES:
        raise TypeError(f"queries must be one of {', '.join(map(str, DTYPES))}, got {q.dtype}")
    heads, head_dim = q.shape[1:]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head size must be one of {', '.join(map(str, HEAD_DIMS))}, got {head_dim}")
    if heads % kv.kv_heads:
        raise ValueError(f"query heads must be a multiple of the KV heads, got {heads} and {kv.kv_heads}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position, got {window}")
    return LayerKind(heads, kv.kv_heads, head_dim, kv.page_size, q.dtype, kv.k.dtype, scale, causal, window, softcap)
