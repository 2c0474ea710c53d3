"""What is special in the GGUF files of each family: names of weights, and settings, read as fields of a `config.json`.

This is beside the families and not in them, since the front end reads settings without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sluice.models.checkpoint import FULL, SLIDING
from sluice.models.formats.gguf_fields import ArchitectureFields

Values = dict[str, Any]
"""Fields of a `config.json`."""
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def _nothing(fields: ArchitectureFields, base: Values) -> Values:
    return {}


@dataclass(frozen=True, slots=True)
class GGUFNames:
    """What is special in the files of a family."""

    modules: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Modules of a layer -> their names, where they are not the usual ones (`gguf_weights.py`)."""
    reads: tuple[str, ...] = ()
    """Fields that `config` reads although most families have none such."""
    config: Callable[[ArchitectureFields, Values], Values] = _nothing
    """Returns fields that other families do not have, or have otherwise; gets all others."""
    is_permuted: bool = False
    """The rows of q and k are in another order: the two halves of each head's pairs are interleaved."""


LARGEST_GEMMA = MappingProxyType({"gemma2": 46, "gemma3": 62})
"""Layers of the largest model of a generation, whose scale is not that of its heads. No field says it."""
GEMMA_MODULES = MappingProxyType(
    {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
GEMMA_READS = (WINDOW, PATTERN, "final_logit_softcapping")


def _gemma(fields: ArchitectureFields, base: Values) -> Values:
    is_largest = base["num_hidden_layers"] == LARGEST_GEMMA[fields.name]
    share = base["hidden_size"] // base["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": share if is_largest else base["head_dim"],
        "sliding_window": fields.integer(WINDOW),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 0.0) or None,
    }


def _gemma2(fields: ArchitectureFields, base: Values) -> Values:
    cap = fields.number("attn_logit_softcapping", 50.0)
    return {**_gemma(fields, base), "layer_types": fields.kinds(2), "attn_logit_softcapping": cap}


def _gemma3(fields: ArchitectureFields, base: Values) -> Values:
    local = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base_swa", 10_000.0)}
    ropes = {FULL: base["rope_parameters"], SLIDING: local}
    return {**_gemma(fields, base), "layer_types": fields.kinds(6), "rope_parameters": ropes}


def _smollm3(fields: ArchitectureFields, base: Values) -> Values:
    return {"no_rope_layer_interval": 4}


GRANITE_FACTORS = MappingProxyType(
    {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
)


def _granite(fields: ArchitectureFields, base: Values) -> Values:
    return {ours: fields.number(theirs, 1.0) for ours, theirs in GRANITE_FACTORS.items()}


def _olmo2(fields: ArchitectureFields, base: Values) -> Values:
    """Return what the files of both generations say; those of OLMo 3 have windows."""
    if not fields.number(WINDOW, 0.0):
        return {}
    local = {"rope_type": "default", "rope_theta": base["rope_parameters"]["rope_theta"]}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": fields.integer(WINDOW),
        "layer_types": fields.kinds(4),
        "rope_parameters": {FULL: base["rope_parameters"], SLIDING: local},
    }


def _phi3(fields: ArchitectureFields, base: Values) -> Values:
    rotated = fields.integer("rope.dimension_count", base["head_dim"])
    window = fields.integer(WINDOW) if fields.number(WINDOW, 0.0) else None
    return {"partial_rotary_factor": rotated / base["head_dim"], "sliding_window": window}


OLMO_MODULES = MappingProxyType(
    {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
)
NAMES: Mapping[str, GGUFNames] = {
    "llama": GGUFNames(is_permuted=True),
    "qwen2": GGUFNames(),
    "qwen3": GGUFNames(),
    "qwen3vl": GGUFNames(reads=("rope.dimension_sections", "n_deepstack_layers")),
    "gemma2": GGUFNames(GEMMA_MODULES, (*GEMMA_READS, "attn_logit_softcapping"), _gemma2),
    "gemma3": GGUFNames(GEMMA_MODULES, (*GEMMA_READS, "rope.freq_base_swa"), _gemma3),
    "smollm3": GGUFNames(config=_smollm3, is_permuted=True),
    "granite": GGUFNames(reads=tuple(GRANITE_FACTORS.values()), config=_granite, is_permuted=True),
    "phi3": GGUFNames(MappingProxyType({"mlp.gate_up_proj": "ffn_up"}), (WINDOW, "rope.dimension_count"), _phi3),
    "olmo2": GGUFNames(OLMO_MODULES, (WINDOW, PATTERN), _olmo2),
}
"""`general.architecture` -> what is special."""
