"""One checked call of attention, as both kernels take it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from sluice.attention.base import ForwardBatch, LayerKV, PagedKV
from sluice.attention.triton.kv import TritonKV
from sluice.attention.triton.walk import AS_STORED, E4M3_BITS

LOG2_E = math.log2(math.e)
QUERY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What is attended to, and what for; N, B, P as in `ForwardBatch`."""

    q: torch.Tensor
    """[N, heads, head_dim], gaps between tokens and heads at most"""
    out: torch.Tensor
    """[N, heads, head_dim]"""
    lse: torch.Tensor
    """[N, heads] float32; of no meaning without `need_lse`"""
    k: torch.Tensor
    """[pages, page_size, kv_heads, head_dim], each page dense; bytes if `kind` is E4M3_BITS"""
    v: torch.Tensor
    batch: ForwardBatch
    scale: float
    v_scale: float
    causal: bool
    window: int
    """0: all keys"""
    softcap: float
    """0: none"""
    need_lse: bool
    kind: int
    """How `walk` reads a page's elements."""

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.q.shape[1] // self.k.shape[2]

    @property
    def head_pad(self) -> int:
        return max(16, triton.next_power_of_2(self.q.shape[2]))

    @property
    def score_scale(self) -> float:
        """See `walk`."""
        return self.scale / self.softcap if self.softcap else self.scale * LOG2_E

    @property
    def score_cap(self) -> float:
        """See `walk`."""
        return self.softcap * LOG2_E


def checked_call(
    q: torch.Tensor,
    kv: PagedKV,
    batch: ForwardBatch,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    k_scale: float | None,
    v_scale: float | None,
    need_lse: bool,
    has_fp8: bool,
) -> AttentionCall:
    """Check what no kernel could.

    Args:
        has_fp8: the device has a type for float8_e4m3fn.

    Raises:
        TypeError: pages of another layout, or a dtype that is not computed in.
        ValueError: sizes that do not fit, or a window below 1.
    """
    if not isinstance(kv, LayerKV | TritonKV):
        raise TypeError(f"Triton attention reads TritonKV or LayerKV, got {type(kv).__name__}")
    if q.dtype not in QUERY_DTYPES:
        raise TypeError(f"queries must be one of {', '.join(map(str, QUERY_DTYPES))}, got {q.dtype}")
    heads, head_dim = q.shape[1:]
    if head_dim != kv.k.shape[3]:
        raise ValueError(f"queries and keys must have one head size, got {head_dim} and {kv.k.shape[3]}")
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head size must be at most {MAX_HEAD_DIM}, got {head_dim}")
    if heads % kv.kv_heads:
        raise ValueError(f"query heads must be a multiple of the KV heads, got {heads} and {kv.kv_heads}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position, got {window}")
    k_factor, v_factor = (1.0 if factor is None else factor for factor in (k_scale, v_scale))
    if isinstance(kv, TritonKV):
        k_factor, v_factor = k_factor * kv.k_scale, v_factor * kv.v_scale
    as_bits = kv.k.dtype == torch.float8_e4m3fn and not has_fp8
    k, v = (kv.k.view(torch.uint8), kv.v.view(torch.uint8)) if as_bits else (kv.k, kv.v)
    return AttentionCall(
        q=q if q.stride(2) == 1 else q.contiguous(),
        out=torch.empty(q.shape, dtype=q.dtype, device=q.device),
        lse=torch.empty(q.shape[:2] if need_lse else (1, 1), dtype=torch.float32, device=q.device),
        k=k,
        v=v,
        batch=batch,
        scale=scale * k_factor,
        v_scale=v_factor,
        causal=causal,
        window=window or 0,
        softcap=softcap or 0.0,
        need_lse=need_lse,
        kind=E4M3_BITS.value if as_bits else AS_STORED.value,
    )
