"""The mixture of experts of Gemma 4: beside an MLP, with norms of its own, and chosen by the residual."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import nn

from sluice.models.blocks.moe import Experts
from sluice.models.fp8_rows import plain
from sluice.models.layers import RMSNorm
from sluice.models.linear import Packer
from sluice.models.ops import Ops, compute_dtype
from sluice.models.plan import DecoderConfig, ExpertsPlan
from sluice.models.router import Choice
from sluice.parallel.member import Member


class Gemma4Experts(Experts):
    """Experts whose router takes the residual, normalised and scaled, and whose outputs have a factor each."""

    cuts = MappingProxyType({**Experts.cuts, "router_norm": None, "expert_scale": None, "pre_norm": None})

    def __init__(self, config: DecoderConfig, plan: ExpertsPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        hidden, dtype = config.spec.hidden_size, config.spec.dtype
        self.router_norm, self.pre_norm = (RMSNorm(hidden, config.norm_eps, dtype) for _ in range(2))
        self.expert_scale = nn.Parameter(torch.empty(plan.router.experts, dtype=compute_dtype(dtype)))

    def pack(self, packer: Packer) -> None:
        """Pack the experts, and scale what the router takes."""
        super().pack(packer)
        weight = self.router_norm.weight
        weight.mul_(len(weight) ** -0.5)

    def forward(self, residual: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, hidden_size] to the same."""
        normed = plain(ops.norm(residual, self.pre_norm.norm))
        return self.routed(normed, plain(ops.norm(residual, self.router_norm.norm)), ops)

    def chosen(self, of_router: torch.Tensor) -> Choice:
        """Return the experts of each token, whose weights have the factors of the experts."""
        ids, weights = super().chosen(of_router)
        return Choice(ids, weights * self.expert_scale[ids])
