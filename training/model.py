"""The model as it is trained: Qwen3 over whole sequences, with Hugging Face's names for its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_STD = 0.02
EXPLICIT_UP_TO = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network."""

    vocab_size: int
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 5
    num_attention_heads: int = 6
    num_key_value_heads: int = 6
    head_dim: int = 64
    max_position_embeddings: int = 8192
    rope_theta: float = 100_000_000.0
    """So great that half of the pairs of a head hardly turn over a long text: they compare words at any distance."""
    rms_norm_eps: float = 1e-6


class Attention(nn.Module):
    """Causal attention with grouped heads, rotary positions, biases, and queries and keys of one length.

    Without their norms, the scores grow as long as a model of this size learns: then a head sees one token alone.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=True)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=True)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=True)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=True)
        self.q_norm = nn.RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = nn.RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        heads = (rows, length, -1, self.shape.head_dim)
        query = rotate(self.q_norm(self.q_proj(hidden).view(heads)).transpose(1, 2), cos, sin)
        key = rotate(self.k_norm(self.k_proj(hidden).view(heads)).transpose(1, 2), cos, sin)
        value = self.v_proj(hidden).view(heads).transpose(1, 2)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = attend(query, key, value)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute causal attention over [rows, heads, length, head_dim]. Plain products are faster for short rows."""
    length = query.shape[-2]
    if length > EXPLICIT_UP_TO:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    future = torch.full((length, length), float("-inf")).triu(1)
    return torch.softmax(scores.float() + future, dim=-1).to(value.dtype) @ value


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and beside the residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Qwen3(nn.Module):
    """`state_dict` under the prefix `model.` is the checkpoint; the head is tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the hidden states before the head, [rows, length, hidden_size], of token ids [rows, length]."""
        hidden = self.embed_tokens(tokens)
        cos, sin = rotary(self.shape, tokens.shape[1])
        cos, sin = cos.to(hidden.dtype), sin.to(hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.embed_tokens.weight)


def initialise(model: Qwen3, seed: int) -> None:
    """Draw normal weights; those that write into the residual are smaller the deeper the network. Biases are zero."""
    generator = torch.Generator().manual_seed(seed)
    depth = (2 * model.shape.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                std = INIT_STD if name.startswith("embed") else weight.shape[1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * std * scale)
            elif name.endswith("bias"):
                weight.zero_()


def rotary(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, head_dim] of the rotary embedding (Su et al., 2021), halves layout."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
