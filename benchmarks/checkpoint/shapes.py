"""The shapes of published models: their config.json and the names and sizes of their tensors, without their weights.

Sizes are those of the configs at openai-community/gpt2, Qwen/Qwen3-0.6B, Qwen/Qwen3-1.7B, meta-llama/Llama-3.2-1B and
Qwen/Qwen3.5-0.8B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from benchmarks.checkpoint.qwen35 import Qwen35Shape
from benchmarks.checkpoint.tensors import DecoderShape, TensorShape


class ModelShape(Protocol):
    """What a checkpoint needs of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    def config(self) -> dict[str, Any]:
        """Return config.json without dtype and special tokens."""
        ...

    def tensors(self) -> Iterator[TensorShape]:
        """Return every tensor except a tied head."""
        ...

    def tiny(self) -> ModelShape:
        """Return a small model of the same family and options, with as long a context, for smoke tests."""
        ...


@dataclass(frozen=True, slots=True)
class GPT2Shape:
    """GPT-2: learned positions, biases everywhere, linear weights stored [in, out], tied head."""

    vocab_size: int
    max_positions: int
    hidden_size: int
    num_layers: int
    num_heads: int

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocab_size,
            "n_positions": self.max_positions,
            "n_ctx": self.max_positions,
            "n_embd": self.hidden_size,
            "n_layer": self.num_layers,
            "n_head": self.num_heads,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True,
        }

    def tensors(self) -> Iterator[TensorShape]:
        hidden = self.hidden_size
        yield TensorShape("transformer.wte.weight", (self.vocab_size, hidden))
        yield TensorShape("transformer.wpe.weight", (self.max_positions, hidden))
        for layer in range(self.num_layers):
            block = f"transformer.h.{layer}"
            yield from _layer_norm(f"{block}.ln_1", hidden)
            yield from _conv1d(f"{block}.attn.c_attn", hidden, 3 * hidden)
            yield from _conv1d(f"{block}.attn.c_proj", hidden, hidden)
            yield from _layer_norm(f"{block}.ln_2", hidden)
            yield from _conv1d(f"{block}.mlp.c_fc", hidden, 4 * hidden)
            yield from _conv1d(f"{block}.mlp.c_proj", 4 * hidden, hidden)
        yield from _layer_norm("transformer.ln_f", hidden)

    def tiny(self) -> GPT2Shape:
        return replace(self, vocab_size=TINY_VOCAB, hidden_size=64, num_layers=2, num_heads=2)


def _layer_norm(name: str, size: int) -> Iterator[TensorShape]:
    yield TensorShape(f"{name}.weight", (size,), 1.0)
    yield TensorShape(f"{name}.bias", (size,), 0.0)


def _conv1d(name: str, inputs: int, outputs: int) -> Iterator[TensorShape]:
    yield TensorShape(f"{name}.weight", (inputs, outputs))
    yield TensorShape(f"{name}.bias", (outputs,), 0.0)


@dataclass(frozen=True, slots=True)
class LlamaShape(DecoderShape):
    """Llama and Qwen3: RMS norms, rotary positions, grouped queries, no biases, tied head."""

    architecture: str
    model_type: str
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None = None
    qk_norm: bool = False
    """True if queries and keys are normalised per head."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of config.json."""

    def config(self) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.sizes(),
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None if self.rope_scaling is None else dict(self.rope_scaling),
            "tie_word_embeddings": True,
            **self.more,
        }

    def tensors(self) -> Iterator[TensorShape]:
        hidden = self.hidden_size
        yield TensorShape("model.embed_tokens.weight", (self.vocab_size, hidden))
        for layer in range(self.num_layers):
            block = f"model.layers.{layer}"
            yield TensorShape(f"{block}.input_layernorm.weight", (hidden,), 1.0)
            yield from self.attention(block, norm=1.0 if self.qk_norm else None)
            yield TensorShape(f"{block}.post_attention_layernorm.weight", (hidden,), 1.0)
            yield from self.mlp(block)
        yield TensorShape("model.norm.weight", (hidden,), 1.0)

    def tiny(self) -> LlamaShape:
        return replace(
            self,
            vocab_size=TINY_VOCAB,
            hidden_size=64,
            inner_size=96,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=32,
        )


TINY_VOCAB = 4096
QWEN3 = LlamaShape(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=151_936,
    max_positions=40_960,
    hidden_size=1024,
    inner_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1_000_000.0,
    qk_norm=True,
    more={"use_sliding_window": False, "sliding_window": None, "max_window_layers": 28},
)
"""Qwen3-0.6B, which larger ones differ from in widths."""
SHAPES: Mapping[str, ModelShape] = {
    "gpt2-124m": GPT2Shape(vocab_size=50_257, max_positions=1024, hidden_size=768, num_layers=12, num_heads=12),
    "qwen3-0.6b": QWEN3,
    "qwen3-1.7b": replace(QWEN3, hidden_size=2048, inner_size=6144),
    "llama-3.2-1b": LlamaShape(
        architecture="LlamaForCausalLM",
        model_type="llama",
        vocab_size=128_256,
        max_positions=131_072,
        hidden_size=2048,
        inner_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        more={"mlp_bias": False},
    ),
    "qwen3.5-0.8b": Qwen35Shape(
        vocab_size=248_320,
        max_positions=262_144,
        hidden_size=1024,
        inner_size=3584,
        num_layers=24,
        num_heads=8,
        num_kv_heads=2,
        head_dim=256,
        key_heads=16,
        value_heads=16,
        key_dim=128,
        value_dim=128,
    ),
}
