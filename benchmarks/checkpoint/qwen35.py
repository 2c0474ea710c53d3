"""The shape of Qwen3.5: three layers with a gated delta net, then one with gated attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.checkpoint.tensors import TensorShape


@dataclass(frozen=True, slots=True)
class Qwen35Shape:
    """Text models of Qwen3.5 without experts, with a tied head. Norms hold what is added to one."""

    vocab_size: int
    max_positions: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int = 4
    full_interval: int = 4

    def config(self) -> dict[str, Any]:
        kinds = ["full_attention" if self._is_full(layer) else "linear_attention" for layer in range(self.num_layers)]
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
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
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
            "layer_types": kinds,
            "linear_conv_kernel_dim": self.taps,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "tie_word_embeddings": True,
        }

    def tensors(self) -> Iterator[TensorShape]:
        hidden, inner = self.hidden_size, self.inner_size
        yield TensorShape("model.embed_tokens.weight", (self.vocab_size, hidden))
        for layer in range(self.num_layers):
            block = f"model.layers.{layer}"
            yield TensorShape(f"{block}.input_layernorm.weight", (hidden,), 0.0)
            if self._is_full(layer):
                yield from self._attention(f"{block}.self_attn")
            else:
                yield from self._delta_net(f"{block}.linear_attn")
            yield TensorShape(f"{block}.post_attention_layernorm.weight", (hidden,), 0.0)
            yield TensorShape(f"{block}.mlp.gate_proj.weight", (inner, hidden))
            yield TensorShape(f"{block}.mlp.up_proj.weight", (inner, hidden))
            yield TensorShape(f"{block}.mlp.down_proj.weight", (hidden, inner))
        yield TensorShape("model.norm.weight", (hidden,), 0.0)

    def tiny(self) -> Qwen35Shape:
        return replace(
            self,
            vocab_size=4096,
            hidden_size=64,
            inner_size=96,
            num_layers=4,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
            key_heads=2,
            value_heads=2,
            key_dim=16,
            value_dim=16,
        )

    def _is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_interval == 0

    def _attention(self, block: str) -> Iterator[TensorShape]:
        hidden, queries, keys = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield TensorShape(f"{block}.q_proj.weight", (2 * queries, hidden))  # with a gate for each head
        yield TensorShape(f"{block}.k_proj.weight", (keys, hidden))
        yield TensorShape(f"{block}.v_proj.weight", (keys, hidden))
        yield TensorShape(f"{block}.o_proj.weight", (hidden, queries))
        yield TensorShape(f"{block}.q_norm.weight", (self.head_dim,), 0.0)
        yield TensorShape(f"{block}.k_norm.weight", (self.head_dim,), 0.0)

    def _delta_net(self, block: str) -> Iterator[TensorShape]:
        hidden, values = self.hidden_size, self.value_heads * self.value_dim
        channels = 2 * self.key_heads * self.key_dim + values
        yield TensorShape(f"{block}.in_proj_qkv.weight", (channels, hidden))
        yield TensorShape(f"{block}.in_proj_z.weight", (values, hidden))
        yield TensorShape(f"{block}.in_proj_b.weight", (self.value_heads, hidden))
        yield TensorShape(f"{block}.in_proj_a.weight", (self.value_heads, hidden))
        yield TensorShape(f"{block}.conv1d.weight", (channels, 1, self.taps))
        yield TensorShape(f"{block}.A_log", (self.value_heads,), 0.0)
        yield TensorShape(f"{block}.dt_bias", (self.value_heads,), 0.0)
        yield TensorShape(f"{block}.norm.weight", (self.value_dim,), 1.0)
        yield TensorShape(f"{block}.out_proj.weight", (hidden, values))
