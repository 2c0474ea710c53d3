"""Blocks that models are built from. They widen to float32 where transformers does."""

from __future__ import annotations

import math

import torch
from torch import nn

from sluice.models.checkpoint import Fields
from sluice.models.fp8_rows import Rows, plain
from sluice.models.linear import EmptyLinear, Gated, Layer, Packer, takes_fp8
from sluice.models.ops import ACTIVATIONS, Angles, Norm, Ops, compute_dtype
from sluice.models.rope import Rope
from sluice.parallel.member import Member


def read_activation(config: Fields, name: str, default: str) -> str:
    """Return the activation in field `name`, a key of `ACTIVATIONS`.

    Raises:
        CheckpointError: the field has another value.
    """
    value = config.text(name, default)
    if value not in ACTIVATIONS:
        raise config.error(name, "one of " + ", ".join(ACTIVATIONS))
    return value


def new_embedding(rows: int, size: int, dtype: torch.dtype) -> nn.Embedding:
    """Return an embedding whose weight [rows, size] has no values yet.

    `nn.Embedding(rows, size)` draws random ones. On the device "meta" that imports torch's compiler first, which takes
    a second, as long as torch itself.
    """
    return nn.Embedding.from_pretrained(torch.empty(rows, size, dtype=dtype), freeze=False)


class RMSNorm(nn.Module):
    """The weight of a root mean square norm over the last dimension."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))
        self.eps = eps
        self.is_fp8 = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x [..., size], in x's dtype."""
        return plain(Ops().norm(x, self.norm))

    def feed(self, layer: nn.Module) -> None:
        """Quantise what it gives if the layer that takes it computes in FP8."""
        self.is_fp8 = takes_fp8(layer)

    @property
    def norm(self) -> Norm:
        """The norm for `Ops`."""
        return Norm(self.weight, self.eps, is_fp8=self.is_fp8)


class Rotary(nn.Module):
    """Angles of rotary position embedding, computed from positions, so that no table limits them.

    Frequencies are in `compute_dtype`, as in training. Their product with a position is computed in float64: in float32
    its error would be up to 0.03 radians at position 1M and 0.25 at 8M, different for every position.
    """

    inv_freq: torch.Tensor

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.attention_factor = rope.attention_factor
        frequencies = rope.inverse_frequencies(head_dim, compute_dtype(dtype))
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, positions: torch.Tensor) -> Angles:
        """Return the angles of positions [N] int64."""
        exact = positions[:, None].to(torch.float64) * self.inv_freq.to(torch.float64)
        angles = exact.remainder(2 * math.pi).to(self.inv_freq.dtype)[:, None]
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return Angles(*(torch.cat((half, half), dim=-1).to(self.dtype) for half in (cos, sin)))


class GatedMLP(nn.Module):
    """A shard's part of `down(activation(gate(x)) * up(x))`, and the sum over the shards.

    Args:
        inner_size: elements of all shards between the matrices.
        bias: whether the layers have biases.
    """

    def __init__(
        self, hidden_size: int, inner_size: int, activation: str, *, bias: bool, dtype: torch.dtype, member: Member
    ) -> None:
        super().__init__()
        inner = len(member.place.part(inner_size))
        self.gate_proj = EmptyLinear(hidden_size, inner, bias=bias, dtype=dtype)
        self.up_proj = EmptyLinear(hidden_size, inner, bias=bias, dtype=dtype)
        self.down_proj: Layer = EmptyLinear(inner, hidden_size, bias=bias and member.place.shard == 0, dtype=dtype)
        self.activation = activation
        self._group = member.tensor_group

    def pack(self, packer: Packer) -> None:
        """Join gate and up into one layer."""
        self.gate_up_proj = packer.gated(self.gate_proj, self.up_proj, self.activation)
        self.down_proj = packer.row_parallel(self.down_proj, self._group)
        if isinstance(self.gate_up_proj, Gated):
            self.gate_up_proj.to_fp8 = takes_fp8(self.down_proj)
        del self.gate_proj, self.up_proj

    def forward(self, x: Rows, ops: Ops) -> torch.Tensor:
        """[N, hidden_size] to the same."""
        return self.down_proj(self.gate_up_proj(x, ops))
