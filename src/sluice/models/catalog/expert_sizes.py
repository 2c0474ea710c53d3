"""Sizes of mixtures of experts, from the fields of a `config.json` alone."""

from __future__ import annotations

from typing import NamedTuple

from sluice.models.checkpoint import CheckpointError, Fields

BESIDE_MLPS = "Gemma4ForCausalLM"
"""The architecture whose layers have experts and MLPs."""
ARCHITECTURES = (
    *("Qwen3MoeForCausalLM", "MixtralForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    *("GptOssForCausalLM", BESIDE_MLPS),
)
"""Architectures whose experts are known."""


class ExpertNumbers(NamedTuple):
    """How many numbers the experts of a model have."""

    layers: int
    """Layers with experts."""
    held: int
    """Experts of a layer."""
    chosen: int
    """Experts that compute a token."""
    each: int
    """Numbers of one expert."""
    beside: int
    """Numbers of all routers, and of MLPs beside experts."""
    replaced: int
    """Numbers of the MLPs that would be in the place of experts."""

    @property
    def idle(self) -> int:
        """Numbers of the experts that do not compute a token."""
        return self.layers * (self.held - self.chosen) * self.each


def expert_numbers(config: Fields, architecture: str) -> ExpertNumbers | None:
    """Return the numbers of a model's experts; None: it has none.

    Raises:
        CheckpointError: a field is not valid, or the architecture's experts are not known.
    """
    named = next((name for name in config if "expert" in name and config.get(name)), None)
    if named is None:
        return None
    if architecture not in ARCHITECTURES:
        raise CheckpointError(f"{config.source} is of a mixture of experts ({named}) that is not known")
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    count = config.integer("num_experts" if config.get("num_experts") else "num_local_experts")
    inner = config.integer("moe_intermediate_size", config.integer("intermediate_size"))
    step, dense = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers")
    listed = dense if isinstance(dense, list) else []
    sparse = sum((number + 1) % step == 0 and number not in listed for number in range(layers))
    shared = 3 * hidden * config.integer("shared_intermediate_size", 0, minimum=0)
    chosen = config.integer("top_k_experts" if architecture == BESIDE_MLPS else "num_experts_per_tok")
    replaced = 0 if architecture == BESIDE_MLPS else sparse * 3 * hidden * config.integer("intermediate_size")
    return ExpertNumbers(sparse, count, chosen, 3 * hidden * inner, sparse * (hidden * count + shared), replaced)
