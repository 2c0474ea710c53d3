"""What the rest of the engine needs to know about a loaded model."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and limits of a model, as loaded."""

    architecture: str
    """The name in `config.json`."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    """Most tokens of one request, prompt and output together."""
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    """Of weights, KV and computation."""
    implementation: str = "native"
    """"native" or "transformers": whose code computes it."""

    def attention_doubles_at(self, weights: int) -> int:
        """The position at which attention to what is before a token takes as many multiplications as all else does.

        Args:
            weights: numbers in the matrices that every token is multiplied with, the head's not among them.
        """
        return max(1, weights // (2 * self.num_layers * self.num_heads * self.head_dim))
