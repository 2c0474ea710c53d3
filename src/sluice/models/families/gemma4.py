"""Gemma 4 (text, dense): two sizes of heads, layers that read others' keys and values, and inputs for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import nn

from sluice.attention.base import ForwardBatch
from sluice.attention.spec import LayerHeads
from sluice.models.base import DOWN, GATE_UP, Report, Stack, WeightRules, no_report
from sluice.models.blocks.attention import LayerContext
from sluice.models.blocks.gemma4_moe import Gemma4Experts
from sluice.models.blocks.layer import SandwichLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig, Fields
from sluice.models.config_fields import (
    decoder_config,
    read_bias,
    read_cap,
    read_kinds,
    read_router,
    read_spec,
    windows_of,
    with_experts,
)
from sluice.models.decoder import Decoder
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import RMSNorm, new_embedding
from sluice.models.linear import EmptyLinear, Layer, Packer
from sluice.models.ops import ACTIVATIONS
from sluice.models.plan import DecoderConfig, ExpertsPlan, LayerPlan, QKNorm
from sluice.models.rope import Rope, read_ropes
from sluice.parallel.member import ALONE, Member

PERIOD = 6
ROPES = MappingProxyType(
    {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }
)
DEFAULTS = MappingProxyType(
    {
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "rope_parameters": dict(ROPES),
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
    }
)
"""Fields that a config may leave out."""
GLOBAL_HEAD_DIM = 512
EXTRA_SCALE = 2.0**-0.5
OF_KV = ("k_proj", "v_proj", "k_norm", "v_norm")


def _rounded(number: float, dtype: torch.dtype) -> float:
    """Return a factor of embeddings, which is a tensor of the weights' dtype in training, too."""
    return float(torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype))


def _full_heads(config: Fields, number: int) -> tuple[int, int]:
    """Return the KV heads of a layer with full attention, and their size."""
    heads, head_dim = config.integer("num_key_value_heads"), config.integer("global_head_dim", GLOBAL_HEAD_DIM)
    if config.flag("attention_k_eq_v", False):
        heads = config.integer("num_global_key_value_heads", heads)
    layers = config.section("per_layer_config")
    if layers is not None:
        own = layers.section(str(number)) or layers
        head_dim, heads = own.integer("head_dim", head_dim), own.integer("num_key_value_heads", heads)
    return heads, head_dim


def _plans(config: Fields, kinds: list[str], ropes: dict[str, Rope]) -> list[LayerPlan]:
    shared = config.integer("num_kv_shared_layers", 0, minimum=0)
    own = kinds[: len(kinds) - shared]
    if shared and {*own} != {*kinds}:
        raise config.error("num_kv_shared_layers", "so few that each kind of layer has keys and values of its own")
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    plans = []
    for number, (kind, window) in enumerate(zip(kinds, windows_of(config, kinds), strict=True)):
        heads, head_dim = config.integer("num_key_value_heads"), config.integer("head_dim")
        if kind == FULL:
            heads, head_dim = _full_heads(config, number)
        is_shared = number >= len(own)
        plans.append(
            LayerPlan(
                1.0,
                window,
                ropes[kind],
                head_dim,
                heads,
                donor=len(own) - 1 - own[::-1].index(kind) if is_shared else None,
                inner_size=config.integer("intermediate_size") * (wide if is_shared else 1),
                has_values=kind != FULL or not config.flag("attention_k_eq_v", False),
            )
        )
    return plans


class Gemma4Layer(SandwichLayer):
    """A layer of Gemma 3's, an input of its own, and a factor of all."""

    cuts = MappingProxyType(
        {
            **SandwichLayer.cuts,
            **dict.fromkeys(
                ("layer_scalar", "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm")
            ),
            **dict.fromkeys(("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")),
        }
    )

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        hidden, size, dtype = config.spec.hidden_size, config.extra_size, config.spec.dtype
        self.layer_scalar = nn.Parameter(torch.empty(1, dtype=dtype))
        self._activation, self._has_extra = ACTIVATIONS[config.activation], size > 0
        self.moe = None if plan.experts is None else Gemma4Experts(config, plan.experts, member)
        if self.moe is not None:
            self.post_feedforward_layernorm_1, self.post_feedforward_layernorm_2 = (
                RMSNorm(hidden, config.norm_eps, dtype) for _ in range(2)
            )
        if size:
            self.per_layer_input_gate: Layer = EmptyLinear(hidden, size, bias=False, dtype=dtype)
            self.per_layer_projection: Layer = EmptyLinear(size, hidden, bias=False, dtype=dtype)
            self.post_per_layer_input_norm = RMSNorm(hidden, config.norm_eps, dtype)

    def pack(self, packer: Packer) -> None:
        """Pack all parts."""
        super().pack(packer)
        if self.moe is not None:
            self.moe.pack(packer)
        if self._has_extra:
            self.per_layer_input_gate = packer.linear(self.per_layer_input_gate)
            self.per_layer_projection = packer.linear(self.per_layer_projection)

    def inner(self, x: torch.Tensor, normed: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        dense = super().inner(x, normed, context, rows)
        if self.moe is None:
            return dense
        ops = context.ops
        routed = ops.norm(self.moe(x, ops), self.post_feedforward_layernorm_2.norm)
        return plain(ops.norm(dense, self.post_feedforward_layernorm_1.norm)) + plain(routed)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, delta = super().forward(x, delta, context, rows)
        assert delta is not None, "the MLP's output"
        x = x + delta
        if context.extra is not None:
            extra = context.extra if rows is None else context.extra[rows]
            gated = self._activation(self.per_layer_input_gate(x)) * extra
            x = x + plain(context.ops.norm(self.per_layer_projection(gated), self.post_per_layer_input_norm.norm))
        return x * self.layer_scalar, None


class Gemma4(Decoder):
    """Gemma 4."""

    layer = Gemma4Layer
    cuts = MappingProxyType(
        {
            **Decoder.cuts,
            **dict.fromkeys(("embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm")),
        }
    )
    rules = WeightRules(
        renamed=(
            ("router.proj", "moe.gate"),
            ("router.scale", "moe.router_norm.weight"),
            ("router.per_expert_scale", "moe.expert_scale"),
            ("pre_feedforward_layernorm_2", "moe.pre_norm"),
        ),
        stacks=(
            Stack("experts.gate_up_proj", GATE_UP, into="moe.experts"),
            Stack("experts.down_proj", DOWN, into="moe.experts"),
        ),
    )
    reads = ("final_logit_softcapping", "use_bidirectional_attention", "num_experts")

    def __init__(self, config: DecoderConfig, member: Member = ALONE) -> None:
        super().__init__(config, member)
        spec, size = config.spec, config.extra_size
        self._first_shared = sum(plan.donor is None for plan in config.layers)
        if size:
            every = spec.num_layers * size
            self.embed_tokens_per_layer: Layer = new_embedding(config.extra_vocab_size, every, spec.dtype)
            self.per_layer_model_projection: Layer = EmptyLinear(spec.hidden_size, every, bias=False, dtype=spec.dtype)
            self.per_layer_projection_norm = RMSNorm(size, config.norm_eps, spec.dtype)

    def pack(self, packer: Packer, report: Report = no_report) -> None:
        super().pack(packer, report)
        if self.config.extra_size:
            self.embed_tokens_per_layer = packer.embedding(self.embed_tokens_per_layer)
            self.per_layer_model_projection = packer.linear(self.per_layer_model_projection)

    def ignores(self, name: str) -> bool:
        """Return whether a tensor is of keys and values that a layer reads of another one instead."""
        outer, _, rest = name.removeprefix("layers.").partition(".")
        is_kv = rest.startswith("self_attn.") and rest.split(".")[1] in OF_KV
        return is_kv and outer.isdigit() and int(outer) >= self._first_shared

    def extras(self, batch: ForwardBatch, x: torch.Tensor) -> Sequence[torch.Tensor | None]:
        size, spec = self.config.extra_size, self.spec
        if not size:
            return super().extras(batch, x)
        of_tokens = self.embed_tokens_per_layer(batch.input_ids) * _rounded(size**0.5, spec.dtype)
        projected = (self.per_layer_model_projection(x) * spec.hidden_size**-0.5).view(-1, size)
        normed = plain(self.ops.norm(projected, self.per_layer_projection_norm.norm))
        return ((normed.view(len(x), -1, size) + of_tokens.view(len(x), -1, size)) * EXTRA_SCALE).unbind(1)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        checkpoint = checkpoint.with_defaults(DEFAULTS)
        config, num_layers = checkpoint.fields, checkpoint.fields.integer("num_hidden_layers")
        if config.get("use_bidirectional_attention") not in (None, False, "vision"):
            raise config.error("use_bidirectional_attention", "null, or 'vision'")
        kinds = list(read_kinds(config, num_layers, [SLIDING if (n + 1) % PERIOD else FULL for n in range(num_layers)]))
        kinds[-1] = FULL  # whatever the config says
        ropes = read_ropes(config, (1_000_000.0, 10_000.0), "rope_local_base_freq")
        plans, spec = _plans(config, kinds, ropes), read_spec(checkpoint, dtype, ropes[FULL])
        own = tuple(
            LayerHeads(plan.num_kv_heads or spec.num_kv_heads, plan.head_dim or spec.head_dim)
            for plan in plans
            if plan.donor is None
        )
        bias = read_bias(config, "attention_bias")
        size = config.integer("hidden_size_per_layer_input", 0, minimum=0)
        read = decoder_config(
            config,
            replace(spec, unequal_kv=own),
            plans,
            activation=("hidden_activation", "gelu_pytorch_tanh"),
            tied=True,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=QKNorm.HEAD,
            value_norm=True,
            embedding_scale=_rounded(spec.hidden_size**0.5, dtype),
            logit_softcap=read_cap(config, cls.reads[0]),
            extra_size=size,
            extra_vocab_size=config.integer("vocab_size_per_layer_input") if size else 0,
        )
        if not config.flag("enable_moe_block", False):
            return read
        plan = ExpertsPlan(
            router=read_router(config, "top_k_experts", renorm_eps=0.0),
            inner_size=config.integer("moe_intermediate_size"),
            activation=read.activation,
        )
        return with_experts(read, [plan] * num_layers, has_mlp=True)
