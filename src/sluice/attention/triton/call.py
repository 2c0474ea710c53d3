"""The checked arguments of one call of attention, for both kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from sluice.attention.base import ForwardBatch, LayerKV, PagedKV
from sluice.attention.spec import AttentionSpec
from sluice.attention.triton.kv import TritonKV
from sluice.attention.triton.tiles import MAX_HEAD_DIM, QUERY_DTYPES
from sluice.attention.triton.walk import AS_STORED, E4M3_BITS, KernelSpec

LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class TritonCall:
    """The arguments of one call, checked; N as in `ForwardBatch`."""

    q: torch.Tensor
    """[N, heads, head_dim], gaps between tokens and heads at most"""
    out: torch.Tensor
    """[N, heads, head_dim]"""
    lse: torch.Tensor
    """[N, heads] float32; not written without `need_lse`"""
    k: torch.Tensor
    """[pages, page_size, kv_heads, head_dim], each page dense; bytes if `kind` is E4M3_BITS"""
    v: torch.Tensor
    batch: ForwardBatch
    spec: AttentionSpec
    k_scale: float
    """The layer's and the pages' factor of keys."""
    v_scale: float
    need_lse: bool
    kind: int
    """How `walk` reads a page's elements."""

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.q.shape[1] // self.k.shape[2]

    @property
    def head_pad(self) -> int:
        """Head size as a power of two."""
        return max(16, triton.next_power_of_2(self.q.shape[2]))

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Strides of q's tokens and heads, of the pages of k and of v."""
        return self.q.stride(0), self.q.stride(1), self.k.stride(0), self.v.stride(0)

    def kernel_spec(self, tile: int) -> KernelSpec:
        """Return the constants of a kernel that takes `tile` keys at a time."""
        _, page_size, kv_heads, head_dim = self.k.shape
        return KernelSpec(
            causal=self.spec.causal,
            block_size=self.spec.block_size or 1,
            has_window=self.spec.window is not None,
            has_softcap=bool(self.spec.softcap),
            need_lse=self.need_lse,
            kind=self.kind,
            page_size=page_size,
            kv_heads=kv_heads,
            group=self.group,
            head_dim=head_dim,
            head_pad=self.head_pad,
            tile=tile,
        )

    @property
    def score_scale(self) -> float:
        """`walk`'s scale."""
        scale, softcap = self.spec.scale * self.k_scale, self.spec.softcap
        return scale / softcap if softcap else scale * LOG2_E

    @property
    def score_cap(self) -> float:
        """`walk`'s softcap."""
        return (self.spec.softcap or 0.0) * LOG2_E


def checked_call(
    q: torch.Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, *, need_lse: bool, has_fp8: bool
) -> TritonCall:
    """Check what no kernel could check, and allocate the outputs.

    Args:
        has_fp8: the device has a type for float8_e4m3fn.

    Raises:
        TypeError: pages of another layout, or a dtype that the kernels do not compute in.
        ValueError: head sizes that do not fit.
    """
    if not isinstance(kv, LayerKV | TritonKV):
        raise TypeError(f"Triton attention reads TritonKV or LayerKV, got {type(kv).__name__}")
    if q.dtype not in QUERY_DTYPES:
        raise TypeError(f"queries must be one of {', '.join(map(str, QUERY_DTYPES))}, got {q.dtype}")
    head_dim = q.shape[2]
    if head_dim != kv.k.shape[3]:
        raise ValueError(f"queries and keys must have one head size, got {head_dim} and {kv.k.shape[3]}")
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head size must be at most {MAX_HEAD_DIM}, got {head_dim}")
    k_scale, v_scale = spec.k_scale, spec.v_scale
    if isinstance(kv, TritonKV):
        k_scale, v_scale = k_scale * kv.k_scale, v_scale * kv.v_scale
    as_bits = kv.k.dtype == torch.float8_e4m3fn and not has_fp8
    k, v = (kv.k.view(torch.uint8), kv.v.view(torch.uint8)) if as_bits else (kv.k, kv.v)
    return TritonCall(
        q=q if q.stride(2) == 1 else q.contiguous(),
        out=torch.empty(q.shape, dtype=q.dtype, device=q.device),
        lse=torch.empty(q.shape[:2] if need_lse else (1, 1), dtype=torch.float32, device=q.device),
        k=k,
        v=v,
        batch=batch,
        spec=spec,
        k_scale=k_scale,
        v_scale=v_scale,
        need_lse=need_lse,
        kind=E4M3_BITS.value if as_bits else AS_STORED.value,
    )
