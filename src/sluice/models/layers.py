"""Blocks that models are built from. They widen to float32 where transformers does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import nn

from sluice.models.blocks.lora import LoraPart, LoraSlots
from sluice.models.checkpoint import Fields
from sluice.models.fp8_rows import Rows, plain
from sluice.models.linear import EmptyLinear, Gated, Layer, Packer, takes_fp8, with_added
from sluice.models.ops import ACTIVATIONS, Angles, Norm, Ops, compute_dtype
from sluice.models.plan import DecoderConfig, LayerPlan
from sluice.models.rope import Rope
from sluice.models.shards import BY_INPUT, BY_OUTPUT, INSIDE_GATE_UP, Block
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
    """The weight of a root mean square norm over the last dimension, in `compute_dtype`.

    Args:
        has_bias: it is a layer norm, with a bias.
    """

    bias: torch.Tensor | None

    def __init__(self, size: int, eps: float, dtype: torch.dtype, *, has_bias: bool = False) -> None:
        super().__init__()
        wide = compute_dtype(dtype)
        self.weight = nn.Parameter(torch.empty(size, dtype=wide))
        self.register_parameter("bias", nn.Parameter(torch.empty(size, dtype=wide)) if has_bias else None)
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
        return Norm(self.weight, self.eps, self.bias, is_fp8=self.is_fp8)


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


def mlp_parts(config: DecoderConfig, plan: LayerPlan) -> Mapping[str, tuple[LoraPart, ...]]:
    """Return the layers of an MLP that adapters may change, by the packed layer that they are in. Without a gate, the
    activation is a part of the first one, which is left as it is. Those of experts cannot be changed."""
    if plan.has_moe or not plan.has_mlp:
        return {}
    hidden, inner = config.spec.hidden_size, plan.inner_size or config.inner_size
    down = {"down_proj": (LoraPart("down_proj", inner, hidden),)}
    if not config.is_gated:
        return down
    if config.is_fused:
        return {"gate_up_proj": (LoraPart("gate_up_proj", hidden, 2 * inner),), **down}
    return {"gate_up_proj": tuple(LoraPart(name, hidden, inner) for name in ("gate_proj", "up_proj")), **down}


class MLP(Block):
    """A shard's part of `down(activation(gate(x)) * up(x))`, summed over the shards; without a gate,
    `down(activation(up(x)))`."""

    cuts = MappingProxyType(
        {
            "gate_proj": BY_OUTPUT,
            "up_proj": BY_OUTPUT,
            "gate_up_proj": INSIDE_GATE_UP,
            "down_proj": BY_INPUT,
        }
    )

    def __init__(self, config: DecoderConfig, member: Member, inner_size: int | None = None) -> None:
        super().__init__()
        hidden, dtype, bias = config.spec.hidden_size, config.spec.dtype, config.mlp_bias
        inner = len(member.place.part(inner_size or config.inner_size))
        self._is_gated, self._is_fused, self.activation = config.is_gated, config.is_fused, config.activation
        if config.is_gated and config.is_fused:
            self.gate_up_proj: Layer = EmptyLinear(hidden, 2 * inner, bias=bias, dtype=dtype)
        else:
            if config.is_gated:
                self.gate_proj = EmptyLinear(hidden, inner, bias=bias, dtype=dtype)
            self.up_proj: Layer = EmptyLinear(hidden, inner, bias=bias, dtype=dtype)
        self.down_proj: Layer = EmptyLinear(inner, hidden, bias=bias and member.place.shard == 0, dtype=dtype)
        self._group = member.tensor_group
        self.lora: dict[str, LoraSlots] = {}

    def pack(self, packer: Packer) -> None:
        """Join gate and up into one layer."""
        if not self._is_gated:
            self.up_proj = packer.linear(self.up_proj, activation=self.activation)
        elif self._is_fused:
            self.gate_up_proj = packer.gated(self.gate_up_proj, activation=self.activation)
        else:
            self.gate_up_proj = packer.gated(self.gate_proj, self.up_proj, activation=self.activation)
            del self.gate_proj, self.up_proj
        self.down_proj = packer.row_parallel(self.down_proj, self._group)
        if self._is_gated and isinstance(self.gate_up_proj, Gated):
            self.gate_up_proj.to_fp8 = takes_fp8(self.down_proj)

    def forward(self, x: Rows, ops: Ops, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """[N, hidden_size] to the same.

        Args:
            adapters: [N] int32, the slot of each row's adapter; None: no row has one.
        """
        if adapters is not None:
            return self._adapted(x, ops, adapters)
        return self.down_proj(self.gate_up_proj(x, ops) if self._is_gated else self.up_proj(x))

    def _adapted(self, x: Rows, ops: Ops, adapters: torch.Tensor) -> torch.Tensor:
        if self._is_gated:
            inner = self.gate_up_proj.adapted(x, ops, adapters, self.lora["gate_up_proj"])
        else:
            inner = self.up_proj(x)
        return with_added(self.down_proj, inner, lambda y: ops.add_lora(y, inner, adapters, self.lora["down_proj"]))

    @property
    def first(self) -> nn.Module:
        """The layer that takes the inputs, once it is packed."""
        found: nn.Module = self.gate_up_proj if self._is_gated else self.up_proj
        return found
