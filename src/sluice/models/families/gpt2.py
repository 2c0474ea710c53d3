"""GPT-2 (Radford et al., 2019). Parameters carry Hugging Face's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.base import CausalLM, Report, WeightRules, no_report
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.fp8_rows import plain
from sluice.models.layers import new_embedding, read_activation
from sluice.models.linear import Layer, Packer
from sluice.models.ops import Norm, Ops
from sluice.models.shards import GPT2 as SHARDS
from sluice.models.shards import check_layout
from sluice.models.spec import ModelSpec
from sluice.parallel.layout import Layout
from sluice.parallel.member import ALONE, Member


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The configuration of a GPT-2."""

    spec: ModelSpec
    inner_size: int
    """Elements between the matrices of the MLP."""
    activation: str
    norm_eps: float
    tie_word_embeddings: bool
    scales: tuple[float, ...]
    """Factor of q.k in each layer."""


def read_gpt2_config(checkpoint: CheckpointConfig, dtype: torch.dtype) -> GPT2Config:
    """Read a GPT-2 config.

    Raises:
        CheckpointError: a field is missing, out of range, or requires something unsupported.
    """
    config = checkpoint.fields
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    num_layers = config.integer("n_layer")
    if hidden_size % num_heads:
        raise config.error("n_embd", f"a multiple of n_head = {num_heads}")
    scale = (hidden_size // num_heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    spec = ModelSpec(
        architecture=checkpoint.architecture,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        hidden_size=hidden_size,
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("n_positions"),
        eos_token_ids=checkpoint.eos_token_ids,
        dtype=dtype,
    )
    return GPT2Config(
        spec,
        inner_size=config.integer("n_inner", 4 * hidden_size),
        activation=read_activation(config, "activation_function", "gelu_new"),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        scales=tuple(scale / (layer + 1) if by_layer else scale for layer in range(num_layers)),
    )


class GPT2Attention(nn.Module):
    """Attention of a shard's heads, summed over the shards; one matrix computes q, k and v."""

    def __init__(self, spec: ModelSpec, scale: float, member: Member) -> None:
        super().__init__()
        own = spec.of(member.place)
        self.spec = replace(own.attention, scale=scale)
        size = own.num_heads * own.head_dim
        self.c_attn: Layer = nn.Linear(spec.hidden_size, 3 * size, dtype=spec.dtype)
        self.c_proj: Layer = nn.Linear(size, spec.hidden_size, bias=member.place.shard == 0, dtype=spec.dtype)
        self._group = member.tensor_group

    def pack(self, packer: Packer) -> None:
        self.c_attn = packer.linear(self.c_attn)
        self.c_proj = packer.row_parallel(self.c_proj, self._group)

    def forward(
        self, x: torch.Tensor, batch: ForwardBatch, kv: PagedKV, attention: Attention, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """[N, hidden_size] to the same, or to those of `rows`."""
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.spec.num_heads, -1)).unbind(1)
        kv.store(batch.kv_slots, k, v)
        out, _ = attention.attend(q, kv, batch, self.spec)
        return self.c_proj(out.flatten(1) if rows is None else out.flatten(1)[rows])


class GPT2MLP(nn.Module):
    """A shard's part of `c_proj(activation(c_fc(x)))`, and the sum over the shards."""

    def __init__(self, config: GPT2Config, member: Member) -> None:
        super().__init__()
        hidden, dtype, inner = config.spec.hidden_size, config.spec.dtype, len(member.place.part(config.inner_size))
        self.c_fc: Layer = nn.Linear(hidden, inner, dtype=dtype)
        self.c_proj: Layer = nn.Linear(inner, hidden, bias=member.place.shard == 0, dtype=dtype)
        self.activation = config.activation
        self._group = member.tensor_group

    def pack(self, packer: Packer) -> None:
        self.c_fc = packer.linear(self.c_fc, activation=self.activation)
        self.c_proj = packer.row_parallel(self.c_proj, self._group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] to the same."""
        return self.c_proj(self.c_fc(x))


def norm_of(module: nn.LayerNorm) -> Norm:
    """Return the norm for `Ops`."""
    return Norm(module.weight, module.eps, module.bias)


class GPT2Block(nn.Module):
    """Attention and MLP, each after a norm and added to the residual.

    The next block adds the MLP's output, since that addition and the norm after it are one operation.
    """

    def __init__(self, config: GPT2Config, scale: float, member: Member) -> None:
        super().__init__()
        hidden, dtype = config.spec.hidden_size, config.spec.dtype
        self.ln_1 = nn.LayerNorm(hidden, config.norm_eps, dtype=dtype)
        self.attn = GPT2Attention(config.spec, scale, member)
        self.ln_2 = nn.LayerNorm(hidden, config.norm_eps, dtype=dtype)
        self.mlp = GPT2MLP(config, member)

    def forward(
        self,
        x: torch.Tensor,
        delta: torch.Tensor,
        batch: ForwardBatch,
        kv: PagedKV,
        attention: Attention,
        ops: Ops,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual [N, hidden_size] and the delta that is still to be added to it, after this block.

        Args:
            rows: [R] int64, indices into N of the tokens to return; None for all.
        """
        x, normed = ops.add_norm(x, delta, norm_of(self.ln_1))
        attended = self.attn(plain(normed), batch, kv, attention, rows)
        x, normed = ops.add_norm(x if rows is None else x[rows], attended, norm_of(self.ln_2))
        return x, self.mlp(plain(normed))


class GPT2(CausalLM):
    """GPT-2 with its learned positions, which end at `n_positions`, or a rank's part of it."""

    rules = WeightRules(
        prefix="transformer.",
        ignored=(".attn.bias", ".attn.masked_bias"),
        transposed=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
        embedding="wte.weight",
        shards=SHARDS,
    )

    def __init__(self, config: GPT2Config, member: Member = ALONE) -> None:
        spec, place = config.spec, member.place
        super().__init__(spec, tied=config.tie_word_embeddings, member=member)
        is_first, hidden, dtype = place.is_first, spec.hidden_size, spec.dtype
        self.wte: Layer | None = new_embedding(spec.vocab_size, hidden, dtype) if is_first else None
        self.wpe = new_embedding(spec.max_model_len, hidden, dtype) if is_first else None
        self.h = nn.ModuleDict(
            {str(layer): GPT2Block(config, config.scales[layer], member) for layer in place.layers(spec.num_layers)}
        )
        self.ln_f = nn.LayerNorm(hidden, config.norm_eps, dtype=dtype) if place.is_last else None
        self.lm_head = self.new_head()

    @classmethod
    def check_layout(cls, checkpoint: CheckpointConfig, layout: Layout) -> None:
        config = read_gpt2_config(checkpoint, torch.bfloat16)
        check_layout(config.spec, config.inner_size, layout)

    @classmethod
    def from_checkpoint(cls, checkpoint: CheckpointConfig, dtype: torch.dtype, member: Member = ALONE) -> Self:
        return cls(read_gpt2_config(checkpoint, dtype), member)

    def pack(self, packer: Packer, report: Report = no_report) -> None:
        for number, block in enumerate(self.h.values()):
            report(number, len(self.h) + 1)
            assert isinstance(block, GPT2Block)
            block.attn.pack(packer)
            block.mlp.pack(packer)
        self.wte = self.pack_head(packer, self.wte)

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        if self.wte is None or self.wpe is None:
            x, delta = self.receive(batch)
        else:
            x, delta = self.wte(batch.input_ids), self.wpe(batch.positions)
        for block, block_kv, rows in self.with_kv(self.h, kv, batch):
            x, delta = block(x, delta, batch, block_kv, attention, self.ops, rows)
        if self.ln_f is None:
            return self.send(x, delta)
        return plain(self.ops.add_norm(x, delta, norm_of(self.ln_f))[1])
