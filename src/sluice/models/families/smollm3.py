"""SmolLM3: a Llama some of whose layers do not rotate q and k."""

from __future__ import annotations

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig, Fields
from sluice.models.config_fields import decoder_config, read_bias, read_kinds, read_spec, windows_of
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan
from sluice.models.rope import read_rope

INTERVAL = 4
"""Layers of which the last is not rotated, in a config that does not say it."""
THETA = 2_000_000.0


def _rotated(config: Fields, num_layers: int) -> list[bool]:
    """Return which layers are rotated. `no_rope_layers` has 1 for these, against its name."""
    given = config.get("no_rope_layers")
    if given is None:
        interval = config.integer("no_rope_layer_interval", INTERVAL)
        return [(number + 1) % interval != 0 for number in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers or not set(given) <= {0, 1}:
        raise config.error("no_rope_layers", f"{num_layers} times 1, for a layer with rotation, or 0")
    return [bool(each) for each in given[:num_layers]]


class SmolLM3(Decoder):
    """SmolLM3."""

    layer = PreNormLayer
    rules = WeightRules()
    reads = ("no_rope_layers",)

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config, rope = checkpoint.fields, read_rope(checkpoint.fields, THETA)
        spec = read_spec(checkpoint, dtype, rope)
        rotated, bias = _rotated(config, spec.num_layers), read_bias(config, "attention_bias")
        use = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
        kinds = read_kinds(config, spec.num_layers, [SLIDING if use and not turns else FULL for turns in rotated])
        windows = windows_of(config, kinds) if use else [None] * spec.num_layers
        layers = [
            LayerPlan(spec.head_dim**-0.5, window, rope if turns else None)
            for window, turns in zip(windows, rotated, strict=True)
        ]
        return decoder_config(
            config,
            spec,
            layers,
            tied=True,
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=read_bias(config, "mlp_bias"),
        )
