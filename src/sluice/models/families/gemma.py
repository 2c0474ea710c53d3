"""Gemma 2 and 3 (text). Norms multiply by 1 more than the weight that a checkpoint stores; GGUF files have the sum."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import SandwichLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig, Fields
from sluice.models.config_fields import decoder_config, read_bias, read_cap, read_kinds, read_spec, windows_of
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.rope import Rope, read_rope, read_ropes

COMMON = MappingProxyType(
    {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    }
)
"""Fields that a config may leave out."""


class Gemma2(Decoder):
    """Gemma 2: every other layer has a window, and scores and logits are capped."""

    layer = SandwichLayer
    rules = WeightRules(plus_one=("norm.weight",))
    reads = ("attn_logit_softcapping", "final_logit_softcapping")
    defaults: ClassVar[dict[str, object]] = {
        **COMMON,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    }
    qk_norm: ClassVar[QKNorm] = QKNorm.NONE
    caps_scores: ClassVar[bool] = True

    @classmethod
    def period(cls, config: Fields) -> int:
        """Return the number of layers of which the last has full attention."""
        return 2

    @classmethod
    def ropes(cls, config: Fields) -> dict[str, Rope]:
        """Read the rotation of each kind of layer."""
        rope = read_rope(config)
        return {FULL: rope, SLIDING: rope}

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        checkpoint = checkpoint.with_defaults(cls.defaults)
        config, ropes = checkpoint.fields, cls.ropes(checkpoint.fields)
        spec = read_spec(checkpoint, dtype, ropes[FULL])
        period, bias = cls.period(config), read_bias(config, "attention_bias")
        kinds = read_kinds(
            config, spec.num_layers, [SLIDING if (n + 1) % period else FULL for n in range(spec.num_layers)]
        )
        scale = config.number("query_pre_attn_scalar") ** -0.5
        windows = windows_of(config, kinds)
        return decoder_config(
            config,
            spec,
            [LayerPlan(scale, window, ropes[kind]) for kind, window in zip(kinds, windows, strict=True)],
            activation=("hidden_activation", "gelu_pytorch_tanh"),
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=cls.qk_norm,
            softcap=read_cap(config, "attn_logit_softcapping") if cls.caps_scores else None,
            logit_softcap=read_cap(config, "final_logit_softcapping"),
            # A tensor of the weights' dtype in training, too.
            embedding_scale=float(torch.tensor(spec.hidden_size**0.5, dtype=torch.float64, device="cpu").to(dtype)),
        )


class Gemma3(Gemma2):
    """Gemma 3: five of six layers have a window and a rotation of their own; q and k are normalised, and not capped."""

    defaults: ClassVar[dict[str, object]] = {**COMMON, "vocab_size": 262_208, "max_position_embeddings": 131_072}
    qk_norm = QKNorm.HEAD
    caps_scores = False

    @classmethod
    def period(cls, config: Fields) -> int:
        return config.integer("sliding_window_pattern", 6)

    @classmethod
    def ropes(cls, config: Fields) -> dict[str, Rope]:
        return read_ropes(config, (1_000_000.0, 10_000.0), "rope_local_base_freq")
