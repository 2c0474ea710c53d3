"""Tiny EAGLE-3 heads with random weights in the published format, and what one computes, slowly and plainly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import tiny_models

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 32, 36, 4, 2, 6
EPS, THETA = 1e-5, 1000.0
TARGET_LAYERS = 7
"""Layers of the targets: the fewest of which low, middle and high ones are three."""
DRAFT_VOCAB = 70
Tensors = dict[str, torch.Tensor]


def target(**changes: Any) -> Any:
    """A tiny Llama that heads are made for."""
    return tiny_models.llama(**({"num_hidden_layers": TARGET_LAYERS} | changes))


def config(**changes: Any) -> dict[str, Any]:
    """The config of a head for `target`."""
    fields = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": tiny_models.VOCAB_SIZE,
        "draft_vocab_size": DRAFT_VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": tiny_models.MAX_POSITIONS,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def tensors(fields: dict[str, Any], *, embedding: bool = False) -> Tensors:
    """The weights of a head, by their published names."""
    generator = torch.Generator().manual_seed(3)
    hidden, states = fields["hidden_size"], 3 * fields.get("target_hidden_size", fields["hidden_size"])

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn((outputs, inputs), generator=generator) * (1.5 / inputs**0.5)

    def norm() -> torch.Tensor:
        return 1 + 0.2 * torch.randn(hidden, generator=generator)

    vocab, drafts = fields["vocab_size"], fields.get("draft_vocab_size", fields["vocab_size"])
    named = {
        "fc.weight": matrix(hidden, states),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, HEADS * HEAD_DIM),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.mlp.gate_proj.weight": matrix(INNER, hidden),
        "midlayer.mlp.up_proj.weight": matrix(INNER, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, INNER),
        "norm.weight": norm(),
        "lm_head.weight": matrix(drafts, hidden),
    }
    if drafts < vocab:
        chosen = torch.randperm(vocab, generator=generator)[:drafts].sort().values
        named["d2t"] = chosen - torch.arange(drafts)
        named["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    if embedding:
        named["embed_tokens.weight"] = matrix(vocab, hidden)
    return named


def save(folder: Path, fields: dict[str, Any], weights: Tensors) -> Path:
    """Write a head's checkpoint."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(weights, folder / "model.safetensors")
    return folder


def make(folder: Path, *, embedding: bool = False, **changes: Any) -> Path:
    """Make a head's checkpoint, with changes of its config."""
    fields = config(**changes)
    return save(folder, fields, tensors(fields, embedding=embedding))


class Reference:
    """A head in float64, over whole texts: no pages, no cache, no shared code.

    Args:
        embedding: [vocab_size, hidden_size] of the target, for a head without one.
    """

    def __init__(self, folder: Path, embedding: torch.Tensor) -> None:
        self.fields = json.loads((folder / "config.json").read_text())
        stored = load_file(folder / "model.safetensors")
        self.offsets = stored.get("d2t")
        self.w = {name: value.double() for name, value in stored.items() if value.is_floating_point()}
        self.embedding = self.w.get("embed_tokens.weight", embedding.double())

    def joined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The target's states [N, hidden_size] of three layers as the head reads them."""
        return torch.cat(list(states), dim=-1) @ self.w["fc.weight"].T

    def hidden(self, tokens: Sequence[int], states: torch.Tensor) -> torch.Tensor:
        """The states behind each pair of a state and the token after it, [len(tokens), hidden_size].

        Args:
            tokens: of positions 1 and on.
            states: [len(tokens), hidden_size], of positions 0 and on.
        """
        w, count = self.w, len(tokens)
        embedded = self.embedding[torch.tensor(list(tokens))]
        normed = rms(states, w["midlayer.hidden_norm.weight"])
        both = torch.cat((rms(embedded, w["midlayer.input_layernorm.weight"]), normed), dim=-1)
        q, k, v = (both @ w[f"midlayer.self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k = (rotated(x.view(count, -1, HEAD_DIM)) for x in (q, k))
        v, group = v.view(count, -1, HEAD_DIM), HEADS // KV_HEADS
        mixed = torch.empty(count, HEADS, HEAD_DIM, dtype=torch.float64)
        for at in range(count):
            for head in range(HEADS):
                keys, values = k[: at + 1, head // group], v[: at + 1, head // group]
                mixed[at, head] = (keys @ q[at, head] / HEAD_DIM**0.5).softmax(-1) @ values
        residual = normed if self.fields.get("norm_before_residual") else states
        x = residual + mixed.flatten(1) @ w["midlayer.self_attn.o_proj.weight"].T
        inner = rms(x, w["midlayer.post_attention_layernorm.weight"])
        gate, up = (inner @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return x + (functional.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [N, vocab_size], -inf for tokens that it cannot guess."""
        own = rms(hidden, self.w["norm.weight"]) @ self.w["lm_head.weight"].T
        if self.offsets is None:
            return own
        logits = torch.full((len(own), self.fields["vocab_size"]), -torch.inf, dtype=torch.float64)
        for guess, offset in enumerate(self.offsets.tolist()):
            logits[:, guess + offset] = own[:, guess]
        return logits


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def rotated(x: torch.Tensor) -> torch.Tensor:
    """x [N, heads, HEAD_DIM] of positions 0 and on."""
    half = HEAD_DIM // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
    )
