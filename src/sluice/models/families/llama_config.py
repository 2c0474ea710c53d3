"""Reads the configs of the Llama family: Llama, Mistral, Qwen2, Qwen3 and SDAR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from sluice.models.checkpoint import CheckpointConfig, CheckpointError, Fields
from sluice.models.layers import read_activation
from sluice.models.rope import Rope, YarnRope, read_rope
from sluice.models.spec import BlockDiffusion, ModelSpec

FULL, SLIDING = "full_attention", "sliding_attention"
MISTRAL_WINDOW = 4096
"""Window of a Mistral config without `sliding_window`; `null` means no window."""
QWEN_FULL_LAYERS = 28
"""Layers before the first one with a window, in a Qwen config with windows but without `max_window_layers`."""
QWEN3_HEAD_DIM = 128
SDAR_BLOCK_SIZE = 4
"""Block of an SDAR config that names none, as its first checkpoints (and SGLang) have it."""
SDAR_MASK_TOKEN = 151669
"""`<|MASK|>` in the tokenizer of every published SDAR model, whose configs seldom name it."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A decoder of the Llama family."""

    spec: ModelSpec
    inner_size: int
    """Elements between the matrices of the MLP."""
    activation: str
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """Latest positions that a query of each layer sees; None is all."""
    rope: Rope


@dataclass(frozen=True, slots=True)
class _Family:
    """Settings that an architecture fixes. None means that the config decides."""

    windows: Callable[[Fields, int], tuple[int | None, ...]]
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None
    is_diffusion: bool = False


def read_llama_config(checkpoint: CheckpointConfig, dtype: torch.dtype) -> LlamaConfig:
    """Read the config of an architecture of the family.

    Raises:
        CheckpointError: a field is missing, out of range, or requires something unsupported.
        KeyError: the architecture is not one of `LLAMA_ARCHITECTURES`.
    """
    family, config = _FAMILIES[checkpoint.architecture], checkpoint.fields
    num_heads, num_layers = config.integer("num_attention_heads"), config.integer("num_hidden_layers")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads = {num_heads}")
    attention_bias = _bias(config, "attention_bias", family.attention_bias)
    rope = read_rope(config)
    spec = ModelSpec(
        architecture=checkpoint.architecture,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, num_heads, family.head_dim),
        hidden_size=config.integer("hidden_size"),
        vocab_size=config.integer("vocab_size"),
        max_model_len=_max_model_len(config, rope),
        eos_token_ids=checkpoint.eos_token_ids,
        dtype=dtype,
        diffusion=_block_diffusion(config) if family.is_diffusion else None,
    )
    return LlamaConfig(
        spec,
        inner_size=config.integer("intermediate_size"),
        activation=read_activation(config, "hidden_act", "silu"),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        # If the architecture fixes it, only q, k and v have biases; as an option of the config, o has one too.
        output_bias=attention_bias and family.attention_bias is None,
        mlp_bias=_bias(config, "mlp_bias", family.mlp_bias),
        qk_norm=family.qk_norm,
        windows=family.windows(config, num_layers),
        rope=rope,
    )


def _block_diffusion(config: Fields) -> BlockDiffusion:
    """Read the block and the mask token of a model of block diffusion (SDAR: Cheng et al., 2025)."""
    diffusion = BlockDiffusion(
        config.integer("block_size", SDAR_BLOCK_SIZE), config.integer("mask_token_id", SDAR_MASK_TOKEN, minimum=0)
    )
    vocab_size = config.integer("vocab_size")
    if diffusion.mask_token_id >= vocab_size:
        raise CheckpointError(
            f"{config.source}: mask_token_id must be below vocab_size = {vocab_size}, got {diffusion.mask_token_id}"
        )
    return diffusion


def _head_dim(config: Fields, num_heads: int, default: int | None) -> int:
    hidden_size = config.integer("hidden_size")
    if config.get("head_dim") is None and default is None and hidden_size % num_heads:
        raise config.error("hidden_size", f"a multiple of num_attention_heads = {num_heads}")
    head_dim = config.integer("head_dim", default or hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(f"{config.source}: head_dim must be even for rotary embedding, got {head_dim}")
    return head_dim


def _max_model_len(config: Fields, rope: Rope) -> int:
    """Return the model's context. YaRN configs often give the original one in `max_position_embeddings`."""
    length = config.integer("max_position_embeddings")
    if isinstance(rope, YarnRope):
        return max(length, int(rope.original_max_positions * rope.factor))
    return length


def _bias(config: Fields, name: str, fixed: bool | None) -> bool:
    given = config.flag(name, bool(fixed))
    if fixed is not None and given != fixed:
        raise config.error(name, f"{str(fixed).lower()} for this architecture")
    return given


def _no_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    if config.get("sliding_window") is not None:
        raise config.error("sliding_window", "null for this architecture")
    if SLIDING in _layer_types(config, num_layers, FULL):
        raise config.error("layer_types", f"all {FULL} for this architecture")
    return (None,) * num_layers


def _sdar_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    if config.flag("use_sliding_window", False):
        raise config.error("use_sliding_window", "false for this architecture")
    if SLIDING in _layer_types(config, num_layers, FULL):
        raise config.error("layer_types", f"all {FULL} for this architecture")
    return (None,) * num_layers


def _mistral_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Return the same window for all layers."""
    window = None
    if "sliding_window" not in config or config.get("sliding_window") is not None:
        window = config.integer("sliding_window", MISTRAL_WINDOW)
    kind = FULL if window is None else SLIDING
    if set(_layer_types(config, num_layers, kind)) != {kind}:
        raise config.error("layer_types", f"all {kind} for this architecture with sliding_window = {window}")
    return (window,) * num_layers


def _qwen_windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Return windows if `use_sliding_window`, on the layers from `max_window_layers` or those in `layer_types`."""
    use, window = config.flag("use_sliding_window", False), None
    if use and config.get("sliding_window") is not None:
        window = config.integer("sliding_window")
    first = config.integer("max_window_layers", QWEN_FULL_LAYERS, minimum=0)
    default = [FULL if window is None or layer < first else SLIDING for layer in range(num_layers)]
    kinds = _layer_types(config, num_layers, default)
    if window is None and SLIDING in kinds:
        raise config.error("layer_types", f"all {FULL} without use_sliding_window and sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _layer_types(config: Fields, num_layers: int, default: str | list[str]) -> list[str]:
    kinds = config.get("layer_types")
    if kinds is None:
        return [default] * num_layers if isinstance(default, str) else default
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {FULL, SLIDING}:
        raise config.error("layer_types", f"{num_layers} times {FULL} or {SLIDING}")
    return kinds


_GENERATING: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(_no_windows),
    "MistralForCausalLM": _Family(_mistral_windows, attention_bias=False, mlp_bias=False),
    "Qwen2ForCausalLM": _Family(_qwen_windows, attention_bias=True, mlp_bias=False),
    "Qwen3ForCausalLM": _Family(_qwen_windows, mlp_bias=False, qk_norm=True, head_dim=QWEN3_HEAD_DIM),
}
_FAMILIES = {
    **_GENERATING,
    **{name.replace("ForCausalLM", "Model"): family for name, family in _GENERATING.items()},
    "SDARForCausalLM": _Family(_sdar_windows, mlp_bias=False, qk_norm=True, head_dim=QWEN3_HEAD_DIM, is_diffusion=True),
}
"""Checkpoints that are made for embeddings may name the model below the head."""
LLAMA_ARCHITECTURES: tuple[str, ...] = tuple(_FAMILIES)
DIFFUSION_ARCHITECTURES: tuple[str, ...] = tuple(name for name, family in _FAMILIES.items() if family.is_diffusion)
