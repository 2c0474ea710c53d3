"""The shape of Qwen3.5: three layers with a gated delta net, then one with gated attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.checkpoint.tensors import DecoderShape, TensorShape


@dataclass(frozen=True, slots=True)
class Qwen35Shape(DecoderShape):
    """Text models of Qwen3.5 without experts, with a tied head. Norms hold what is added to one."""

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
            **self.sizes(),
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
        hidden = self.hidden_size
        yield TensorShape("model.embed_tokens.weight", (self.vocab_size, hidden))
        for layer in range(self.num_layers):
            block = f"model.layers.{layer}"
            yield TensorShape(f"{block}.input_layernorm.weight", (hidden,), 0.0)
            if self._is_full(layer):
                yield from self.attention(block, has_gate=True, norm=0.0)
            else:
                yield from self._delta_net(f"{block}.linear_attn")
            yield TensorShape(f"{block}.post_attention_layernorm.weight", (hidden,), 0.0)
            yield from self.mlp(block)
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
