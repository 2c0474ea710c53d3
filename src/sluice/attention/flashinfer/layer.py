"""What a plan depends on besides the step: layers of equal kind share their plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sluice.attention.base import LayerKV, PagedKV
from sluice.attention.spec import AttentionSpec

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 256)


class LayerKind(NamedTuple):
    """A layer's attention, and what its pages hold."""

    spec: AttentionSpec
    page_size: int
    kv_dtype: torch.dtype

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of `plan`."""
        spec = self.spec
        return {"num_qo_heads": spec.num_heads, "num_kv_heads": spec.num_kv_heads, "page_size": self.page_size}

    @property
    def rules(self) -> dict[str, Any]:
        """Arguments of `plan`. FlashInfer's window counts the positions to the left; ours includes the query's own."""
        spec = self.spec
        return {
            "sm_scale": spec.scale,
            "window_left": -1 if spec.window is None else spec.window - 1,
            "logits_soft_cap": spec.softcap or 0.0,
            "q_data_type": spec.dtype,
            "kv_data_type": self.kv_dtype,
        }

    @property
    def suits_tensor_cores(self) -> bool:
        """Whether the query heads of one KV head fill enough of a tile in a decode."""
        return self.spec.num_heads // self.spec.num_kv_heads > 2


def layer_kind(q: torch.Tensor, kv: PagedKV, spec: AttentionSpec) -> LayerKind:
    """Return the kind of a call.

    Raises:
        TypeError: pages of another layout, or queries of a dtype that FlashInfer does not take.
        ValueError: a head size that it does not take.
    """
    if type(kv) is not LayerKV:
        raise TypeError(f"FlashInfer reads LayerKV, got {type(kv).__name__}")
    if q.dtype not in DTYPES:
        raise TypeError(f"queries must be one of {', '.join(map(str, DTYPES))}, got {q.dtype}")
    if q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"head size must be one of {', '.join(map(str, HEAD_DIMS))}, got {q.shape[2]}")
    return LayerKind(spec, kv.page_size, kv.k.dtype)
