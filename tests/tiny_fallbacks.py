"""Tiny random models that run through transformers, each with what makes it different.

Some of these architectures have a native implementation, too.
"""

from __future__ import annotations

from collections.abc import Callable

import transformers

from tiny_families import FOUR, gemma2, gemma3, granite, olmo2, phi3, tiny
from tiny_models import VOCAB_SIZE, WINDOW, made

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "original_max_position_embeddings": 64,
    "factor": 8.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


def phi3_long() -> transformers.PreTrainedModel:
    """LongRoPE: other frequencies from 64 tokens on."""
    return phi3(sliding_window=None, original_max_position_embeddings=64, rope_parameters=LONGROPE)


def cohere() -> transformers.PreTrainedModel:
    """Attention and MLP side by side, interleaved rotary pairs, scaled logits."""
    return tiny("Cohere", logit_scale=3.0, use_qk_norm=True)


def mixtral() -> transformers.PreTrainedModel:
    """A mixture of experts, of a size that grouped matrix products take in 16 bits."""
    return tiny("Mixtral", intermediate_size=48, **EXPERTS)


def gpt_neox() -> transformers.PreTrainedModel:
    """Rotary over a part of each head, one matrix for q, k and v."""
    return tiny("GPTNeoX")


def gpt_oss(head_dim: int = 12) -> transformers.PreTrainedModel:
    """A sink in the softmax of every head, windows on every other layer."""
    return tiny("GptOss", head_dim=head_dim, sliding_window=WINDOW, **FOUR, **EXPERTS)


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
