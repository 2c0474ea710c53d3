"""Grouped-query attention with rotary positions, and the variants that families have of it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import RMSNorm
from sluice.models.linear import Layer, Packer
from sluice.models.ops import Angles, HeadNorms, Ops, compute_dtype
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.shards import BY_INPUT, BY_KV_HEADS, BY_OUTPUT, INSIDE_QKV, Block
from sluice.parallel.group import Group
from sluice.parallel.member import Member


class LayerContext(NamedTuple):
    """What a layer computes with, beside the residual."""

    batch: ForwardBatch
    kv: PagedKV
    """The layer's pages."""
    attention: Attention
    ops: Ops
    angles: Angles | None = None
    """Those of the layer's rotation; None: there is none."""
    growth: torch.Tensor | None = None
    """[N, 1, 1] in the model's dtype, factors of the rotated queries; None: there are none."""


class GroupedAttention(Block):
    """Grouped-query attention of a shard's heads, summed over the shards."""

    cuts = MappingProxyType(
        {
            "q_proj": BY_OUTPUT,
            "k_proj": BY_KV_HEADS,
            "v_proj": BY_KV_HEADS,
            "qkv_proj": INSIDE_QKV,
            "q_norm": None,
            "k_norm": None,
            "o_proj": BY_INPUT,
        }
    )

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__()
        spec = config.spec.of(member.place)
        hidden, head_dim, dtype, bias = spec.hidden_size, spec.head_dim, spec.dtype, config.qkv_bias
        self.head_counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.spec = replace(spec.attention, window=plan.window, scale=plan.scale, softcap=config.softcap)
        self._is_fused = config.is_fused
        if config.is_fused:
            self.qkv_proj: Layer = nn.Linear(hidden, sum(self.head_counts) * head_dim, bias=bias, dtype=dtype)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(hidden, heads * head_dim, bias=bias, dtype=dtype) for heads in self.head_counts
            )
        has_bias = config.output_bias and member.place.shard == 0
        self.o_proj: Layer = nn.Linear(spec.num_heads * head_dim, hidden, bias=has_bias, dtype=dtype)
        self._group = member.tensor_group
        if config.qk_norm is not QKNorm.NONE:
            sizes = [heads * head_dim if config.qk_norm is QKNorm.ROW else head_dim for heads in self.head_counts[:2]]
            self.q_norm, self.k_norm = (RMSNorm(size, config.norm_eps, dtype) for size in sizes)
        self._qk_norm = config.qk_norm

    def pack(self, packer: Packer) -> None:
        """Join q, k and v into one layer."""
        if self._is_fused:
            self.qkv_proj = packer.linear(self.qkv_proj)
        else:
            self.qkv_proj = packer.linear(self.q_proj, self.k_proj, self.v_proj)
            del self.q_proj, self.k_proj, self.v_proj
        self.o_proj = packer.row_parallel(self.o_proj, self._group)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (-1, self.spec.head_dim)).split(self.head_counts, dim=1)
        norms = None
        if self._qk_norm is QKNorm.HEAD:
            norms = HeadNorms(self.q_norm.norm, self.k_norm.norm)
        elif self._qk_norm is QKNorm.ROW:
            q, k = self._row_norm(q, self.q_norm, context.ops), self._row_norm(k, self.k_norm, context.ops)
        batch, kv = context.batch, context.kv
        q = context.ops.rotate_and_store(q, k, v, context.angles, norms, kv, batch.kv_slots)
        if context.growth is not None:
            q = q * context.growth
        out, _ = context.attention.attend(q, kv, batch, self.spec)
        return self.o_proj(out.flatten(1) if rows is None else out.flatten(1)[rows])

    def _row_norm(self, x: torch.Tensor, norm: RMSNorm, ops: Ops) -> torch.Tensor:
        """Normalise x [N, heads, head_dim] over all heads of all shards."""
        if self._group.size == 1:
            return plain(ops.norm(x.flatten(1), norm.norm)).view(x.shape)
        return row_norm(x.flatten(1), norm, self._group).view(x.shape)


def row_norm(x: torch.Tensor, norm: RMSNorm, group: Group) -> torch.Tensor:
    """Return the norm of rows x [N, size] of which each shard of a group has a part."""
    wide = x.to(compute_dtype(x.dtype))
    # Shards that have the same heads count them equally often, so the mean is that of all heads once.
    squares = group.all_reduce(wide.pow(2).mean(-1, keepdim=True)) / group.size
    return (norm.weight * (wide * torch.rsqrt(squares + norm.eps))).to(x.dtype)
