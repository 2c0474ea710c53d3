"""What may be special in the GGUF files of a family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sluice.models.formats.gguf_fields import EXPERT_COUNT, ArchitectureFields

Values = dict[str, Any]
"""Fields of a `config.json`."""


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
    varying: tuple[str, ...] = ()
    """Sizes that may differ between layers."""
    has_states: bool = False
    """Some of its layers have a state in the place of attention."""
    has_gates: bool = False
    """The matrix of q has a gate beside each head."""
    is_permuted: bool = False
    """The rows of q and k are in another order: the two halves of each head's pairs are interleaved."""
    has_rates_by_head: bool = False
    """One tensor holds both small matrices of a gated delta net, for each k head those of its value heads."""
    in_layers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Modules of a layer that are called as one outside of the layers is."""


SHARED_SIZE = "expert_shared_feed_forward_length"


def experts_of(fields: ArchitectureFields) -> Values:
    """Return the numbers of experts."""
    return {
        "num_local_experts": fields.integer(EXPERT_COUNT),
        "num_experts_per_tok": fields.integer("expert_used_count"),
    }


GRANITE_FACTORS = MappingProxyType(
    {
        "embedding_multiplier": "embedding_scale",
        "attention_multiplier": "attention.scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
)


def granite_factors(fields: ArchitectureFields) -> Values:
    return {ours: fields.number(theirs, 1.0) for ours, theirs in GRANITE_FACTORS.items()}
