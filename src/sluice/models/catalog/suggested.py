"""Small models to begin with, whose licence lets everybody use them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sluice.models.catalog.estimate import Estimate
from sluice.models.catalog.sizes import ModelSizes


class Suggested(NamedTuple):
    """A model on the hub."""

    id: str
    licence: str
    config: Mapping[str, Any]
    """The fields of its `config.json` that say its sizes."""

    def estimate(self, quantization: str = "none") -> Estimate:
        return Estimate(ModelSizes.of(self.config, self.id), quantization)


def _config(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocab: int, context: int
) -> Mapping[str, Any]:
    """Return the sizes of a model whose head is its embedding."""
    return MappingProxyType(
        {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": vocab,
            "max_position_embeddings": context,
            "tie_word_embeddings": True,
        }
    )


SUGGESTED = (
    Suggested("HuggingFaceTB/SmolLM2-360M-Instruct", "Apache-2.0", _config(960, 2560, 32, 15, 5, 64, 49_152, 8192)),
    Suggested("Qwen/Qwen3-0.6B", "Apache-2.0", _config(1024, 3072, 28, 16, 8, 128, 151_936, 40_960)),
    Suggested("Qwen/Qwen3-1.7B", "Apache-2.0", _config(2048, 6144, 28, 16, 8, 128, 151_936, 40_960)),
)
"""Suggested models, from small to large."""
