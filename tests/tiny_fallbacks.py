"""Tiny random models of architectures that have no native implementation, each with what makes it different."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tiny_models import VOCAB_SIZE, WINDOW, exact, made, sizes

FOUR = {"num_hidden_layers": 4}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "original_max_position_embeddings": 64,
    "factor": 8.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


def _tiny(name: str, config: str | None = None, **changes: Any) -> transformers.PreTrainedModel:
    kind = getattr(transformers, f"{name}ForCausalLM")
    return made(kind, getattr(transformers, config or f"{name}Config")(**(sizes() | changes)))


def gemma2(head_dim: int = 12) -> transformers.PreTrainedModel:
    """Soft caps on scores and logits, a scale of its own, every other layer with a window, scaled embeddings."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 7}
    return _tiny("Gemma2", head_dim=head_dim, sliding_window=WINDOW, **FOUR, **caps)


def gemma3() -> transformers.PreTrainedModel:
    """Windows and another rotary base on most layers, q and k normalised."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    ropes = {kind: {"rope_type": "default", "rope_theta": 10.0 + len(kind)} for kind in set(kinds)}
    own = {"layer_types": kinds, "rope_parameters": ropes, "query_pre_attn_scalar": 7}
    return _tiny("Gemma3", "Gemma3TextConfig", head_dim=12, sliding_window=WINDOW, **FOUR, **own)


def phi3(**changes: Any) -> transformers.PreTrainedModel:
    """One matrix for q, k and v, a window on every layer."""
    return _tiny("Phi3", **({"sliding_window": WINDOW, "pad_token_id": 0} | changes))


def phi3_long() -> transformers.PreTrainedModel:
    """LongRoPE: other frequencies from 64 tokens on."""
    return phi3(sliding_window=None, original_max_position_embeddings=64, rope_parameters=LONGROPE)


def olmo2() -> transformers.PreTrainedModel:
    """Norms behind attention and MLP; q and k normalised over all heads."""
    return _tiny("Olmo2")


def granite() -> transformers.PreTrainedModel:
    """Multipliers on embeddings, residuals, scores and logits."""
    scales = {"embedding_multiplier": 1.5, "residual_multiplier": 0.8, "attention_multiplier": 0.3}
    return _tiny("Granite", logits_scaling=0.7, **scales)


def cohere() -> transformers.PreTrainedModel:
    """Attention and MLP side by side, interleaved rotary pairs, scaled logits."""
    return _tiny("Cohere", logit_scale=3.0, use_qk_norm=True)


def mixtral() -> transformers.PreTrainedModel:
    """A mixture of experts, of a size that grouped matrix products take in 16 bits."""
    return _tiny("Mixtral", intermediate_size=48, **EXPERTS)


def gpt_neox() -> transformers.PreTrainedModel:
    """Rotary over a part of each head, one matrix for q, k and v."""
    return _tiny("GPTNeoX")


def gpt_oss(head_dim: int = 12) -> transformers.PreTrainedModel:
    """A sink in the softmax of every head, windows on every other layer."""
    return _tiny("GptOss", head_dim=head_dim, sliding_window=WINDOW, **FOUR, **EXPERTS)


def opt() -> transformers.PreTrainedModel:
    """Learned positions with an offset, a decoder inside the model."""
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "ffn_dim": 44, "num_hidden_layers": 3}
    config = transformers.OPTConfig(**sizes, num_attention_heads=4, max_position_embeddings=512, word_embed_proj_dim=32)
    return made(transformers.OPTForCausalLM, config)


FALLBACKS: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": phi3,
    "phi3-long": phi3_long,
    "olmo2": olmo2,
    "granite": granite,
    "cohere": cohere,
    "mixtral": mixtral,
    "gpt-neox": gpt_neox,
    "gpt-oss": gpt_oss,
    "opt": opt,
}


def load_reference(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """What transformers makes of a checkpoint, with its plainest attention and experts."""
    with exact(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        ).eval()
