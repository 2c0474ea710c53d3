"""Small models to begin with, whose licence lets everybody use them."""

from __future__ import annotations

from typing import NamedTuple

from sluice.models.catalog.estimate import Estimate
from sluice.models.catalog.sizes import ModelSizes


class Suggested(NamedTuple):
    """A model on the hub."""

    id: str
    licence: str
    sizes: ModelSizes

    def estimate(self, quantization: str = "none") -> Estimate:
        return Estimate(self.sizes, quantization)


def _suggested(
    id: str,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    context: int,
    licence: str = "Apache-2.0",
) -> Suggested:
    """Return a model with Llama's layers, whose head is its embedding."""
    layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    sizes = ModelSizes(
        name=id,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=context,
        stored=layers * layer + vocab * hidden,
        table=vocab * hidden,
        tied=True,
        kv=2 * layers * kv_heads * head_dim,
    )
    return Suggested(id, licence, sizes)


SUGGESTED = (
    _suggested("HuggingFaceTB/SmolLM2-360M-Instruct", 960, 2560, 32, 15, 5, 64, 49_152, 8192),
    _suggested("Qwen/Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151_936, 40_960),
    _suggested("Qwen/Qwen3-1.7B", 2048, 6144, 28, 16, 8, 128, 151_936, 40_960),
)
"""Suggested models, from small to large."""
