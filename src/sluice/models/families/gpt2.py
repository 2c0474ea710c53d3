"""GPT-2 (Radford et al., 2019)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn

from sluice.attention.base import ForwardBatch
from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import CheckpointConfig
from sluice.models.decoder import Decoder
from sluice.models.layers import new_embedding, read_activation
from sluice.models.plan import DecoderConfig, LayerPlan
from sluice.models.spec import ModelSpec
from sluice.parallel.member import ALONE, Member


class GPT2(Decoder):
    """GPT-2 with its learned positions, which end at `n_positions`."""

    layer = PreNormLayer
    cuts = MappingProxyType({**Decoder.cuts, "wpe": None})
    rules = WeightRules(
        prefix="transformer.",
        ignored=(".attn.bias", ".attn.masked_bias"),
        renamed=(
            ("wte", "embed_tokens"),
            ("h", "layers"),
            ("ln_1", "input_layernorm"),
            ("attn.c_attn", "self_attn.qkv_proj"),
            ("attn.c_proj", "self_attn.o_proj"),
            ("ln_2", "post_attention_layernorm"),
            ("mlp.c_fc", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
            ("ln_f", "norm"),
        ),
        transposed=(".qkv_proj.weight", ".o_proj.weight", ".up_proj.weight", ".down_proj.weight"),
    )

    def __init__(self, config: DecoderConfig, member: Member = ALONE) -> None:
        super().__init__(config, member)
        spec = config.spec
        self.wpe: nn.Module | None = (
            new_embedding(spec.max_model_len, spec.hidden_size, spec.dtype) if member.place.is_first else None
        )

    def embed(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.wpe is not None, "a stage that is not the first"
        return super().embed(batch)[0], self.wpe(batch.positions)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = checkpoint.fields
        hidden_size, num_heads, num_layers = (config.integer(name) for name in ("n_embd", "n_head", "n_layer"))
        if hidden_size % num_heads:
            raise config.error("n_embd", f"a multiple of n_head = {num_heads}")
        head_dim = hidden_size // num_heads
        scale = head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
        by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
        spec = ModelSpec(
            architecture=checkpoint.architecture,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            hidden_size=hidden_size,
            vocab_size=config.integer("vocab_size"),
            max_model_len=config.integer("n_positions"),
            eos_token_ids=checkpoint.eos_token_ids,
            dtype=dtype,
        )
        return DecoderConfig(
            spec=spec,
            layers=tuple(LayerPlan(scale / (number + 1) if by_layer else scale) for number in range(num_layers)),
            inner_size=config.integer("n_inner", 4 * hidden_size),
            activation=read_activation(config, "activation_function", "gelu_new"),
            norm_eps=config.number("layer_norm_epsilon", 1e-5),
            tied=config.flag("tie_word_embeddings", True),
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            is_fused=True,
            is_gated=False,
            is_layer_norm=True,
        )
