"""Grouped-query attention with rotary positions, and the variants that families have of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.attention.states import LayerState, StateStep
from sluice.models.blocks.lora import LoraPart, LoraSlots
from sluice.models.fp8_rows import Rows, plain
from sluice.models.key_offset import key_offset
from sluice.models.layers import RMSNorm
from sluice.models.linear import EmptyLinear, Layer, Packer, with_added
from sluice.models.ops import Angles, HeadNorms, Ops, compute_dtype
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.shards import BY_INPUT, BY_OUTPUT, INSIDE_QKV, Block, by_kv_heads
from sluice.parallel.group import Group
from sluice.parallel.member import Member


class LayerContext(NamedTuple):
    """What a layer computes with, beside the residual."""

    batch: ForwardBatch
    kv: PagedKV
    """The layer's pages; of a layer with a state, another layer's."""
    attention: Attention
    ops: Ops
    angles: Angles | None = None
    """Those of the layer's rotation; None: there is none."""
    growth: torch.Tensor | None = None
    """[N, 1, 1] in the model's dtype, factors of the rotated queries; None: there are none."""
    extra: torch.Tensor | None = None
    """[N, size], what some models give each layer of each token, beside the residual."""
    adapters: torch.Tensor | None = None
    """[N] int32, the slot of each token's adapter; None: no token has one."""
    state: LayerState | None = None
    """The layer's state, where `batch.states` says; None: it has pages instead."""

    def own_state(self) -> StateStep:
        """Return the state of a layer that has one, with the rows of the step."""
        assert self.state is not None, "a layer without a state"
        assert self.batch.states is not None, "a batch without rows of states"
        return StateStep(self.state, self.batch.states, self.batch.q_lens)

    def adapters_of(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Return `adapters` of some tokens, or of all."""
        return self.adapters if self.adapters is None or rows is None else self.adapters[rows]


def attention_parts(config: DecoderConfig, plan: LayerPlan) -> Mapping[str, tuple[LoraPart, ...]]:
    """Return the layers that adapters may change, by the packed layer that they are in."""
    spec, head_dim = config.spec, plan.head_dim or config.spec.head_dim
    heads = _heads(config, plan, spec.num_heads, plan.num_kv_heads or spec.num_kv_heads)
    parts = (LoraPart(name, spec.hidden_size, count * head_dim) for name, count in _stored(config, heads).items())
    return {
        "qkv_proj": tuple(parts),
        "o_proj": (LoraPart("o_proj", spec.num_heads * head_dim, spec.hidden_size),),
    }


def _heads(config: DecoderConfig, plan: LayerPlan, heads: int, kv_heads: int) -> dict[str, int]:
    """Return the heads that q, k and v have, as far as a layer has them. Gates of the output count as heads of q."""
    heads *= 2 if config.has_output_gate else 1
    if plan.donor is not None:
        return {"q_proj": heads}
    of_keys = {"q_proj": heads, "k_proj": kv_heads}
    return {**of_keys, "v_proj": kv_heads} if plan.has_values else of_keys


def _stored(config: DecoderConfig, heads: dict[str, int]) -> dict[str, int]:
    """Return the heads by matrix of the checkpoint."""
    return {"qkv_proj": sum(heads.values())} if config.is_fused else heads


class GroupedAttention(Block):
    """Grouped-query attention of a shard's heads, summed over the shards.

    A layer may read the keys and values that another one has stored before, and then it has only queries.
    """

    sinks: torch.Tensor | None
    cuts = MappingProxyType(
        {
            "q_proj": BY_OUTPUT,
            "qkv_proj": INSIDE_QKV,
            "q_norm": None,
            "k_norm": None,
            "o_proj": BY_INPUT,
            "sinks": BY_OUTPUT,
        }
    )

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__()
        spec = config.spec.of(member.place)
        head_dim, all_kv_heads = plan.head_dim or spec.head_dim, plan.num_kv_heads or config.spec.num_kv_heads
        kv_heads, of_kv = len(member.place.part(all_kv_heads)), by_kv_heads(all_kv_heads)
        self.cuts = MappingProxyType({**self.cuts, "k_proj": of_kv, "v_proj": of_kv})
        same = replace(spec.attention, num_kv_heads=kv_heads, head_dim=head_dim)
        self.spec = replace(same, window=plan.window, scale=plan.scale, softcap=config.softcap)
        own = _heads(config, plan, spec.num_heads, kv_heads)
        self._parts = _stored(config, own)
        self.head_counts = tuple(own.values())
        hidden, dtype, eps = spec.hidden_size, spec.dtype, config.norm_eps
        for name, heads in self._parts.items():
            self.add_module(name, EmptyLinear(hidden, heads * head_dim, bias=config.qkv_bias, dtype=dtype))
        has_bias = config.output_bias and member.place.shard == 0
        self.o_proj: Layer = EmptyLinear(spec.num_heads * head_dim, hidden, bias=has_bias, dtype=dtype)
        self._group = member.tensor_group
        self.lora: dict[str, LoraSlots] = {}
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm is not QKNorm.NONE:
            is_row = config.qk_norm is QKNorm.ROW
            if is_row:
                self.cuts = MappingProxyType({**self.cuts, "q_norm": BY_OUTPUT, "k_norm": of_kv})
            self.q_norm = RMSNorm(spec.num_heads * head_dim if is_row else head_dim, eps, dtype)
            if plan.donor is None:
                self.k_norm = RMSNorm(kv_heads * head_dim if is_row else head_dim, eps, dtype)
        sinks = nn.Parameter(torch.empty(spec.num_heads, dtype=compute_dtype(dtype)))
        self.register_parameter("sinks", sinks if config.has_sinks else None)
        self._is_row_norm = config.qk_norm is QKNorm.ROW
        self._has_gate = config.has_output_gate
        self._value_eps = eps if config.value_norm else None
        self._rope = plan.rope
        # A norm would scale the bias, and a softcap bends the scores, so that what all have in common counts.
        self._has_offset = self.k_norm is None and config.softcap is None and config.rotary_dim is None
        self._k_offset: torch.Tensor | None = None

    @property
    def first(self) -> nn.Module:
        """The layer that takes the inputs, once it is packed."""
        found: nn.Module = self.qkv_proj
        return found

    def pack(self, packer: Packer) -> None:
        """Join q, k and v into one layer."""
        parts: list[Layer] = [self.get_submodule(name) for name in self._parts]
        bias = self.get_submodule("k_proj").bias if self._has_offset and "k_proj" in self._parts else None
        if isinstance(bias, torch.Tensor):
            self._k_offset = key_offset(bias, self._rope, self.spec.head_dim)
        for name in self._parts:
            delattr(self, name)
        self.qkv_proj = packer.linear(*parts)
        self.o_proj = packer.row_parallel(self.o_proj, self._group)

    def forward(self, x: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        joined = self.qkv_proj(x)
        if context.adapters is not None:
            context.ops.add_lora(joined, x, context.adapters, self.lora["qkv_proj"])
        heads = joined.unflatten(-1, (-1, self.spec.head_dim)).split(self.head_counts, dim=1)
        q, gate = heads[0], None
        if self._has_gate:  # behind the query of each head
            q, gate = q.unflatten(1, (-1, 2)).unbind(2)
        if len(heads) == 1:  # keys and values are another layer's
            norm = None if self.q_norm is None else self.q_norm.norm
            q = context.ops.rotate_queries(q, context.angles, norm)
        else:
            q = self._stored(q, heads[1], heads[-1], context)
        if context.growth is not None:
            q = q * context.growth
        out, lse = context.attention.attend(q, context.kv, context.batch, self.spec, need_lse=self.sinks is not None)
        if self.sinks is not None:
            assert lse is not None, "it was asked for"
            out = out * torch.sigmoid(lse - self.sinks).unsqueeze(-1).to(out.dtype)
        if gate is not None:
            out = out * torch.sigmoid(gate)
        inner = out.flatten(1) if rows is None else out.flatten(1)[rows]
        adapters = context.adapters_of(rows)
        if adapters is None:
            return self.o_proj(inner)
        return with_added(self.o_proj, inner, lambda y: context.ops.add_lora(y, inner, adapters, self.lora["o_proj"]))

    def _stored(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """Write the keys and values of a step's tokens, and return their queries, all normalised and rotated."""
        ops, norms = context.ops, None
        if self._value_eps is not None:
            v = unit_norm(v, self._value_eps)
        elif v is k:
            v = k.clone()
        if self.q_norm is not None and self.k_norm is not None:
            if self._is_row_norm:
                q, k = self._row_norm(q, self.q_norm, ops), self._row_norm(k, self.k_norm, ops)
            else:
                norms = HeadNorms(self.q_norm.norm, self.k_norm.norm)
        return ops.rotate_and_store(q, k, v, context.angles, norms, context.kv, context.batch.kv_slots, self._k_offset)

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


def unit_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the root mean square norm of x over its last dimension, without a weight."""
    wide = x.to(compute_dtype(x.dtype))
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
