"""Llama 2, 3 and 3.x, and the families that differ from it in options: Mistral, Qwen2, Qwen3 and SDAR."""

from __future__ import annotations

from typing import ClassVar

import torch

from sluice.models.base import WeightRules
from sluice.models.blocks.layer import PreNormLayer
from sluice.models.checkpoint import FULL, SLIDING, CheckpointConfig, CheckpointError, Fields
from sluice.models.config_fields import decoder_config, read_bias, read_kinds, read_spec, windows_of
from sluice.models.decoder import Decoder
from sluice.models.plan import DecoderConfig, LayerPlan, QKNorm
from sluice.models.rope import read_rope
from sluice.models.spec import BlockDiffusion

MISTRAL_WINDOW = 4096
"""Window of a Mistral config without `sliding_window`; `null` means no window."""
QWEN_FULL_LAYERS = 28
"""Layers before the first one with a window, in a Qwen config with windows but without `max_window_layers`."""
QWEN3_HEAD_DIM = 128
SDAR_BLOCK_SIZE = 4
"""Block of an SDAR config that names none, as its first checkpoints (and SGLang) have it."""
SDAR_MASK_TOKEN = 151669
"""`<|MASK|>` in the tokenizer of every published SDAR model, whose configs seldom name it."""


def all_full(config: Fields, num_layers: int) -> list[int | None]:
    """Check that no layer has a window."""
    if SLIDING in read_kinds(config, num_layers, [FULL] * num_layers):
        raise config.error("layer_types", f"all {FULL} for this architecture")
    return [None] * num_layers


class Llama(Decoder):
    """Llama. What the class variables say of its subclasses, their configs cannot change."""

    layer = PreNormLayer
    rules = WeightRules()
    attention_bias: ClassVar[bool | None] = None
    """Whether q, k and v have biases; None: the config decides, and of o, too."""
    mlp_bias: ClassVar[bool | None] = None
    qk_norm: ClassVar[QKNorm] = QKNorm.NONE
    head_dim: ClassVar[int | None] = None
    """Of a config that names none; None: the hidden size is shared by the heads."""

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        """Read the window of each layer."""
        if config.get("sliding_window") is not None:
            raise config.error("sliding_window", "null for this architecture")
        return all_full(config, num_layers)

    @classmethod
    def diffusion(cls, config: Fields) -> BlockDiffusion | None:
        """Read how the model generates blocks of tokens; None: it generates token by token."""
        return None

    @classmethod
    def read(cls, checkpoint: CheckpointConfig, dtype: torch.dtype) -> DecoderConfig:
        config = checkpoint.fields
        rope = read_rope(config)
        spec = read_spec(checkpoint, dtype, rope, head_dim=cls.head_dim, diffusion=cls.diffusion(config))
        bias, scale = read_bias(config, "attention_bias", cls.attention_bias), spec.head_dim**-0.5
        return decoder_config(
            config,
            spec,
            [LayerPlan(scale, window, rope) for window in cls.windows(config, spec.num_layers)],
            qkv_bias=bias,
            # If the architecture fixes it, only q, k and v have biases; as an option of the config, o has one too.
            output_bias=bias and cls.attention_bias is None,
            mlp_bias=read_bias(config, "mlp_bias", cls.mlp_bias),
            qk_norm=cls.qk_norm,
        )


class Mistral(Llama):
    """Mistral, whose layers all have one window, or none."""

    attention_bias = False
    mlp_bias = False

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        window = None
        if "sliding_window" not in config or config.get("sliding_window") is not None:
            window = config.integer("sliding_window", MISTRAL_WINDOW)
        kind = FULL if window is None else SLIDING
        if set(read_kinds(config, num_layers, [kind])) != {kind}:
            raise config.error("layer_types", f"all {kind} for this architecture with sliding_window = {window}")
        return [window] * num_layers


class Qwen2(Llama):
    """Qwen2, with biases on q, k and v."""

    attention_bias: ClassVar[bool | None] = True
    mlp_bias = False

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        use = config.flag("use_sliding_window", False) and config.get("sliding_window") is not None
        first = config.integer("max_window_layers", QWEN_FULL_LAYERS, minimum=0)
        default = [FULL if not use or layer < first else SLIDING for layer in range(num_layers)]
        kinds = read_kinds(config, num_layers, default)
        if not use and SLIDING in kinds:
            raise config.error("layer_types", f"all {FULL} without use_sliding_window and sliding_window")
        return windows_of(config, kinds)


class Qwen3(Qwen2):
    """Qwen3, which normalises the heads of q and k."""

    attention_bias = None
    qk_norm = QKNorm.HEAD
    head_dim: ClassVar[int | None] = QWEN3_HEAD_DIM


class SDAR(Qwen3):
    """SDAR, a Qwen3 of block diffusion (Cheng et al., 2025)."""

    @classmethod
    def windows(cls, config: Fields, num_layers: int) -> list[int | None]:
        if config.flag("use_sliding_window", False):
            raise config.error("use_sliding_window", "false for this architecture")
        return all_full(config, num_layers)

    @classmethod
    def diffusion(cls, config: Fields) -> BlockDiffusion:
        """Read the block and the mask token."""
        block_size = config.integer("block_size", SDAR_BLOCK_SIZE)
        mask, vocab_size = config.integer("mask_token_id", SDAR_MASK_TOKEN, minimum=0), config.integer("vocab_size")
        if mask >= vocab_size:
            raise CheckpointError(f"{config.source}: mask_token_id must be below vocab_size = {vocab_size}, got {mask}")
        return BlockDiffusion(block_size, mask)
