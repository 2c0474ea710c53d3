"""The blocks that models are built from. Where they widen to float32 is where transformers does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from sluice.models.fields import Fields
from sluice.models.rope import Rope

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


def read_activation(config: Fields, name: str, default: str) -> str:
    """The activation that field `name` asks for, a key of `ACTIVATIONS`.

    Raises:
        CheckpointError: it is not one of them.
    """
    value = config.text(name, default)
    if value not in ACTIVATIONS:
        raise config.error(name, "one of " + ", ".join(ACTIVATIONS))
    return value


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What norms and rotary angles are computed in: float64 stays float64, all else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class RMSNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich, 2019) over the last dimension."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same, in x's dtype."""
        wide = x.to(compute_dtype(x.dtype))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Rotary(nn.Module):
    """Angles of rotary position embedding, computed from positions: there is no table to outgrow."""

    inv_freq: torch.Tensor

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.attention_factor = rope.attention_factor
        frequencies = rope.inverse_frequencies(head_dim, compute_dtype(dtype))
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N] int64 to cos and sin, each [N, 1, head_dim]."""
        angles = positions[:, None].to(self.inv_freq.dtype) * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(self.dtype), sin.to(self.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x [N, heads, head_dim]; pair i is elements i and i + head_dim / 2, as Hugging Face stores weights."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, hidden_size: int, inner_size: int, activation: str, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, inner_size, bias=bias, dtype=dtype)
        self.up_proj = nn.Linear(hidden_size, inner_size, bias=bias, dtype=dtype)
        self.down_proj = nn.Linear(inner_size, hidden_size, bias=bias, dtype=dtype)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] to the same."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
