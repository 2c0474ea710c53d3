"""A tensor of a checkpoint without its values, and what decoders with grouped queries have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple


class TensorShape(NamedTuple):
    """A tensor of a checkpoint. A norm's weights are ones and a bias is zero; everything else is drawn."""

    name: str
    shape: tuple[int, ...]
    fill: float | None = None
    """Value of all elements; None for random ones."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Grouped queries and a gated MLP, without biases."""

    vocab_size: int
    max_positions: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def sizes(self) -> dict[str, Any]:
        """Return the fields of config.json that follow from the shape."""
        return {
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_positions,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.inner_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
        }

    def attention(self, block: str, *, has_gate: bool = False, norm: float | None = None) -> Iterator[TensorShape]:
        """Return the tensors of attention in the layer `block`.

        Args:
            has_gate: `q_proj` has a gate for each head, too.
            norm: the value in the norms of queries and keys; None if there are none.
        """
        hidden, queries, keys = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield TensorShape(f"{block}.self_attn.q_proj.weight", (2 * queries if has_gate else queries, hidden))
        yield TensorShape(f"{block}.self_attn.k_proj.weight", (keys, hidden))
        yield TensorShape(f"{block}.self_attn.v_proj.weight", (keys, hidden))
        yield TensorShape(f"{block}.self_attn.o_proj.weight", (hidden, queries))
        if norm is not None:
            yield TensorShape(f"{block}.self_attn.q_norm.weight", (self.head_dim,), norm)
            yield TensorShape(f"{block}.self_attn.k_norm.weight", (self.head_dim,), norm)

    def mlp(self, block: str) -> Iterator[TensorShape]:
        """Return the tensors of the MLP in the layer `block`."""
        yield TensorShape(f"{block}.mlp.gate_proj.weight", (self.inner_size, self.hidden_size))
        yield TensorShape(f"{block}.mlp.up_proj.weight", (self.inner_size, self.hidden_size))
        yield TensorShape(f"{block}.mlp.down_proj.weight", (self.hidden_size, self.inner_size))
