"""Layers of attention and an MLP, which differ in where their norms are.

A layer takes the residual and a delta that is still to be added to it, and returns both: the next norm adds the delta,
since that addition and the norm after it are one operation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import torch

from sluice.models.blocks.attention import GroupedAttention, LayerContext
from sluice.models.blocks.gated_delta import GatedDelta
from sluice.models.blocks.mamba2 import Mamba2
from sluice.models.blocks.moe import MoE
from sluice.models.blocks.short_conv import ShortConv
from sluice.models.blocks.state_mixer import StateMixer
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import MLP, RMSNorm
from sluice.models.linear import Packer
from sluice.models.ops import Ops
from sluice.models.plan import DecoderConfig, LayerPlan, StateKind
from sluice.models.shards import Block
from sluice.parallel.member import Member

STATE_MIXERS: Mapping[StateKind, type[StateMixer]] = {
    StateKind.SHORT_CONV: ShortConv,
    StateKind.MAMBA2: Mamba2,
    StateKind.GATED_DELTA: GatedDelta,
}
"""What is in the place of attention in a layer with a state."""


class DecoderLayer(Block):
    """Attention, or what has a state in its place, and an MLP, each added to the residual."""

    cuts = MappingProxyType(
        dict.fromkeys(
            (
                "norm",
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        )
    )

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__()
        self._has_state = plan.state is not None
        if plan.has_kv:
            self.self_attn = GroupedAttention(config, plan, member)
        elif plan.state is not None:
            self.state = STATE_MIXERS[plan.state.kind](config, plan.state)
        self.mlp: MLP | MoE
        if plan.has_mlp:
            self.mlp = MLP(config, member, plan.inner_size)
        elif plan.experts is not None:
            self.mlp = MoE(config, plan.experts, member)

    @property
    def mixer(self) -> GroupedAttention | StateMixer:
        """Attention, or what is in its place."""
        return self.state if self._has_state else self.self_attn

    def pack(self, packer: Packer) -> None:
        """Pack both parts."""
        self.mixer.pack(packer)
        self.mlp.pack(packer)

    @abstractmethod
    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the residual [N, hidden_size] and the delta that is still to be added to it, after this layer.

        Args:
            delta: still to be added to `x`; None in the first layer.
            rows: [R] int64, indices into N of the tokens to return; None for all.
        """


def sum_and_norm(x: torch.Tensor, delta: torch.Tensor | None, norm: RMSNorm, ops: Ops) -> tuple[torch.Tensor, Rows]:
    """Return the sum of the residual and what is to be added to it, and its norm."""
    return (x, ops.norm(x, norm.norm)) if delta is None else ops.add_norm(x, delta, norm.norm)


class PreNormLayer(DecoderLayer):
    """A norm before attention, and another before the MLP, as in Llama."""

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        hidden, eps, dtype = config.spec.hidden_size, config.norm_eps, config.spec.dtype
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(hidden, eps, dtype, has_bias=config.is_layer_norm) for _ in range(2)
        )
        self._scale = config.residual_scale

    def pack(self, packer: Packer) -> None:
        """Pack both parts, and let the norms give what these take."""
        super().pack(packer)
        self.input_layernorm.feed(self.mixer.first)
        self.post_attention_layernorm.feed(self.mlp.first)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, normed = sum_and_norm(x, delta, self.input_layernorm, context.ops)
        attended = self._scaled(self.mixer(normed, context, rows))
        x = x if rows is None else x[rows]
        x, normed = context.ops.add_norm(x, attended, self.post_attention_layernorm.norm)
        return x, self._scaled(self.mlp(normed, context.ops, context.adapters_of(rows)))

    def _scaled(self, delta: torch.Tensor) -> torch.Tensor:
        return delta if self._scale == 1 else delta * self._scale


class OnePartLayer(DecoderLayer):
    """A norm before the one part that it has: attention or what is in its place, or an MLP or experts, as in
    Nemotron-H."""

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        self.norm = RMSNorm(config.spec.hidden_size, config.norm_eps, config.spec.dtype)
        self._has_mixer = plan.has_mixer

    def pack(self, packer: Packer) -> None:
        """Pack the part, and let the norm give what it takes."""
        part = self.mixer if self._has_mixer else self.mlp
        part.pack(packer)
        self.norm.feed(part.first)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, normed = sum_and_norm(x, delta, self.norm, context.ops)
        if self._has_mixer:
            added = self.mixer(normed, context, rows)
        else:
            wanted = normed if rows is None else plain(normed)[rows]
            added = self.mlp(wanted, context.ops, context.adapters_of(rows))
        return x if rows is None else x[rows], added


class PostNormLayer(DecoderLayer):
    """A norm after attention, and another after the MLP, as in OLMo 2."""

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        hidden, eps, dtype = config.spec.hidden_size, config.norm_eps, config.spec.dtype
        self.post_attention_layernorm, self.post_feedforward_layernorm = (RMSNorm(hidden, eps, dtype) for _ in range(2))

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ops = context.ops
        x = x if delta is None else x + delta
        attended = plain(ops.norm(self.self_attn(x, context, rows), self.post_attention_layernorm.norm))
        x = (x if rows is None else x[rows]) + attended
        return x, plain(ops.norm(self.mlp(x, ops, context.adapters_of(rows)), self.post_feedforward_layernorm.norm))


class SandwichLayer(DecoderLayer):
    """Norms before and after attention, and before and after the MLP, as in Gemma 2."""

    def __init__(self, config: DecoderConfig, plan: LayerPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        hidden, eps, dtype = config.spec.hidden_size, config.norm_eps, config.spec.dtype
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(hidden, eps, dtype) for _ in range(2))
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (
            RMSNorm(hidden, eps, dtype) for _ in range(2)
        )

    def pack(self, packer: Packer) -> None:
        """Pack both parts, and let the norms before them give what these take."""
        super().pack(packer)
        self.input_layernorm.feed(self.self_attn.qkv_proj)
        self.pre_feedforward_layernorm.feed(self.mlp.first)

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None, context: LayerContext, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ops = context.ops
        x, normed = sum_and_norm(x, delta, self.input_layernorm, ops)
        attended = plain(ops.norm(self.self_attn(normed, context, rows), self.post_attention_layernorm.norm))
        x = x if rows is None else x[rows]
        x, normed = ops.add_norm(x, attended, self.pre_feedforward_layernorm.norm)
        return x, plain(ops.norm(self.inner(x, normed, context, rows), self.post_feedforward_layernorm.norm))

    def inner(self, x: torch.Tensor, normed: Rows, context: LayerContext, rows: torch.Tensor | None) -> torch.Tensor:
        """Return what is between the norms before and after the MLP.

        Args:
            x: the residual.
            normed: its norm.
        """
        return self.mlp(normed, context.ops, context.adapters_of(rows))
