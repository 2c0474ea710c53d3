"""The Llama family: Llama 2, 3 and 3.x, Mistral, Qwen2, Qwen3, SDAR. Parameters carry Hugging Face's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.base import CausalLM, Report, WeightRules, no_report
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.families.llama_config import LlamaConfig, read_llama_config
from sluice.models.fp8_rows import Rows, plain
from sluice.models.key_offset import key_offset
from sluice.models.layers import GatedMLP, RMSNorm, Rotary, new_embedding
from sluice.models.linear import Layer, Packer
from sluice.models.ops import Angles, HeadNorms, Ops
from sluice.models.shards import LLAMA, check_layout
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member


class LlamaAttention(nn.Module):
    """Grouped-query attention of a shard's heads with rotary positions, summed over the shards.

    q and k are normalised per head first in Qwen3.
    """

    def __init__(self, config: LlamaConfig, window: int | None, member: Member) -> None:
        super().__init__()
        spec = config.spec.of(member.place)
        hidden, head_dim, dtype = spec.hidden_size, spec.head_dim, spec.dtype
        self.head_counts = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        self.spec = replace(spec.attention, window=window)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(hidden, heads * head_dim, bias=config.qkv_bias, dtype=dtype) for heads in self.head_counts
        )
        has_bias = config.output_bias and member.place.shard == 0
        self.o_proj: Layer = nn.Linear(spec.num_heads * head_dim, hidden, bias=has_bias, dtype=dtype)
        self._group = member.tensor_group
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, dtype) if config.qk_norm else None
        self._rope = config.rope
        self._k_offset: torch.Tensor | None = None

    def pack(self, packer: Packer) -> None:
        """Join q, k and v into one layer."""
        bias = self.k_proj.bias
        if bias is not None and self.k_norm is None:
            self._k_offset = key_offset(bias, self._rope, self.spec.head_dim)
        self.qkv_proj = packer.linear(self.q_proj, self.k_proj, self.v_proj)
        self.o_proj = packer.row_parallel(self.o_proj, self._group)
        del self.q_proj, self.k_proj, self.v_proj

    def forward(
        self,
        x: Rows,
        angles: Angles,
        batch: ForwardBatch,
        kv: PagedKV,
        attention: Attention,
        ops: Ops,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`; `angles` are those of the batch's positions."""
        q, k, v = self.qkv_proj(x).unflatten(-1, (-1, self.spec.head_dim)).split(self.head_counts, dim=1)
        q = ops.rotate_and_store(q, k, v, angles, self._head_norms(), kv, batch.kv_slots, self._k_offset)
        out, _ = attention.attend(q, kv, batch, self.spec)
        return self.o_proj(out.flatten(1) if rows is None else out.flatten(1)[rows])

    def _head_norms(self) -> HeadNorms | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return HeadNorms(self.q_norm.norm, self.k_norm.norm)


class LlamaLayer(nn.Module):
    """Attention and MLP, each after a norm and added to the residual.

    The next layer adds the MLP's output, since that addition and the norm after it are one operation.
    """

    def __init__(self, config: LlamaConfig, window: int | None, member: Member) -> None:
        super().__init__()
        hidden, eps, dtype = config.spec.hidden_size, config.rms_norm_eps, config.spec.dtype
        self.input_layernorm = RMSNorm(hidden, eps, dtype)
        self.self_attn = LlamaAttention(config, window, member)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype)
        inner, bias = config.inner_size, config.mlp_bias
        self.mlp = GatedMLP(hidden, inner, config.activation, bias=bias, dtype=dtype, member=member)

    def pack(self, packer: Packer) -> None:
        """Pack both parts, and let the norms give what these take."""
        self.self_attn.pack(packer)
        self.mlp.pack(packer)
        self.input_layernorm.feed(self.self_attn.qkv_proj)
        self.post_attention_layernorm.feed(self.mlp.gate_up_proj)

    def forward(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        angles: Angles,
        batch: ForwardBatch,
        kv: PagedKV,
        attention: Attention,
        ops: Ops,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual [N, hidden_size] and the delta that is still to be added to it, after this layer.

        Args:
            rows: [R] int64, indices into N of the tokens to return; None for all.
        """
        norm = self.input_layernorm.norm
        x, normed = (x, ops.norm(x, norm)) if delta is None else ops.add_norm(x, delta, norm)
        attended = self.self_attn(normed, angles, batch, kv, attention, ops, rows)
        x = x if rows is None else x[rows]
        x, normed = ops.add_norm(x, attended, self.post_attention_layernorm.norm)
        return x, self.mlp(normed, ops)


class Llama(CausalLM):
    """A decoder of the Llama family, or a rank's part of it."""

    rules = WeightRules(
        prefix="model.",
        ignored=tuple(f"rotary_emb.{name}" for name in ("inv_freq", "cos_cached", "sin_cached")),
        shards=LLAMA,
    )

    def __init__(self, config: LlamaConfig, member: Member = ALONE) -> None:
        spec, place = config.spec, member.place
        super().__init__(spec, tied=config.tie_word_embeddings, member=member)
        is_first, is_last = place.is_first, place.is_last
        self.embed_tokens: Layer | None = (
            new_embedding(spec.vocab_size, spec.hidden_size, spec.dtype) if is_first else None
        )
        self.rotary = Rotary(config.rope, spec.head_dim, spec.dtype)
        self.layers = nn.ModuleDict(
            {str(layer): LlamaLayer(config, config.windows[layer], member) for layer in place.layers(spec.num_layers)}
        )
        self.norm = RMSNorm(spec.hidden_size, config.rms_norm_eps, spec.dtype) if is_last else None
        self.lm_head = self.new_head()

    @classmethod
    def check_layout(cls, checkpoint: CheckpointConfig, layout: Layout) -> None:
        config = read_llama_config(checkpoint, torch.bfloat16)
        check_layout(config.spec, config.inner_size, layout)

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype, member: Member = ALONE) -> Self:
        return cls(read_llama_config(checkpoint, dtype), member)

    def pack(self, packer: Packer, report: Report = no_report) -> None:
        for number, layer in enumerate(self.layers.values()):
            report(number, len(self.layers) + 1)
            assert isinstance(layer, LlamaLayer)
            layer.pack(packer)
        self.embed_tokens = self.pack_head(packer, self.embed_tokens)

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return self.forward_with_states(batch, kv, attention, ())[0]

    def forward_with_states(
        self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention, layers: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Compute a step as `forward` does, and hand out what enters some layers: heads like EAGLE-3's draft from that.

        Args:
            layers: numbers of layers, from 0, ascending. Only a model that is not cut into stages has all of them.

        Returns:
            What `forward` returns, and the residual [N, hidden_size] that enters each of `layers`, of all tokens.
        """
        delta: torch.Tensor | None = None
        if self.embed_tokens is None:
            x, delta = self.receive(batch)
        else:
            x = self.embed_tokens(batch.input_ids)
        angles = self.rotary(batch.positions)
        states: list[torch.Tensor] = []
        for number, (layer, layer_kv, rows) in enumerate(self.with_kv(self.layers, kv, batch)):
            if number in layers:
                states.append(x.clone() if delta is None else x + delta)
            x, delta = layer(x, delta, angles, batch, layer_kv, attention, self.ops, rows)
        assert delta is not None, "a stage has at least one layer"
        if self.norm is None:
            return self.send(x, delta), states
        return plain(self.ops.add_norm(x, delta, self.norm.norm)[1]), states
