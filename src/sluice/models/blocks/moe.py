"""A mixture of experts in the place of an MLP."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import torch
from torch import nn

from sluice.models.experts import ExpertLayers
from sluice.models.fp8_rows import Rows, plain
from sluice.models.layers import MLP
from sluice.models.linear import EmptyLinear, Layer, Packer, WideLinear
from sluice.models.ops import Ops, compute_dtype
from sluice.models.plan import DecoderConfig, ExpertsPlan
from sluice.models.quantized import QuantizedLinear
from sluice.models.router import Choice, Chooser
from sluice.models.shards import Block
from sluice.parallel.member import Member


class Expert(Block):
    """The layers of an expert, as they are read: a shard's part of the inner size."""

    cuts = MLP.cuts

    def __init__(self, config: DecoderConfig, plan: ExpertsPlan, member: Member) -> None:
        super().__init__()
        hidden, dtype, inner = config.spec.hidden_size, config.spec.dtype, len(member.place.part(plan.inner_size))
        self.gate_proj = EmptyLinear(hidden, inner, bias=plan.has_bias, dtype=dtype) if plan.is_gated else None
        self.up_proj = EmptyLinear(hidden, inner, bias=plan.has_bias, dtype=dtype)
        has_bias = plan.has_bias and member.place.shard == 0
        self.down_proj = EmptyLinear(inner, hidden, bias=has_bias, dtype=dtype)


class Experts(Block):
    """A router and a shard's part of all experts, summed over the shards."""

    select_bias: torch.Tensor | None
    cuts = MappingProxyType({"gate": None, "select_bias": None})

    def __init__(self, config: DecoderConfig, plan: ExpertsPlan, member: Member) -> None:
        super().__init__()
        router, dtype = plan.router, config.spec.dtype
        self._router, self._activation = router, plan.activation
        self.chooser: Chooser = router
        self._wide = compute_dtype(dtype) if router.is_wide else dtype
        self.gate: Layer = WideLinear(config.spec.hidden_size, router.experts, bias=router.has_bias, dtype=self._wide)
        bias = nn.Parameter(torch.empty(router.experts, dtype=compute_dtype(dtype)))
        self.register_parameter("select_bias", bias if router.has_select_bias else None)
        self.experts: Layer = nn.ModuleList(Expert(config, plan, member) for _ in range(router.experts))
        self._group = member.tensor_group

    def pack(self, packer: Packer) -> None:
        """Pack the experts, one after the other."""
        if isinstance(self.gate, QuantizedLinear):  # whose product takes rows in the model's dtype
            self._wide = self.gate.dtype
        self.chooser, self.gate = packer.router(self._router), packer.head(self.gate)
        self.experts = packer.experts(_taken(self.experts), self._activation)

    def routed(self, x: torch.Tensor, of_router: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Return what the experts of each token make of x [T, hidden_size].

        Args:
            of_router: [T, hidden_size], by which the experts are chosen.
        """
        ids, weights = self.chosen(of_router)
        out: torch.Tensor = self.experts(x, ids, weights, ops)
        return out if self._group.size == 1 else self._group.all_reduce(out)

    def chosen(self, of_router: torch.Tensor) -> Choice:
        """Return the experts of each token, by what the router takes of it [T, hidden_size]."""
        return self.chooser.choose(self.gate(of_router.to(self._wide)), self.select_bias)


def _taken(experts: nn.ModuleList) -> Iterator[ExpertLayers]:
    """Iterate over the experts' layers, and forget each one that was handed out."""
    while len(experts):
        expert = experts.pop(0)
        yield ExpertLayers(expert.gate_proj, expert.up_proj, expert.down_proj)


class MoE(Experts):
    """A mixture of experts in the place of an MLP, and an MLP that every token passes, if there is one."""

    cuts = MappingProxyType({**Experts.cuts, "shared_gate": None})

    def __init__(self, config: DecoderConfig, plan: ExpertsPlan, member: Member) -> None:
        super().__init__(config, plan, member)
        self.shared_mlp = MLP(config, member, plan.shared_size) if plan.shared_size else None
        self.shared_gate: Layer | None = None
        if plan.has_shared_gate:
            self.shared_gate = WideLinear(config.spec.hidden_size, 1, bias=False, dtype=config.spec.dtype)

    def pack(self, packer: Packer) -> None:
        """Pack all parts."""
        super().pack(packer)
        if self.shared_mlp is not None:
            self.shared_mlp.pack(packer)
        if self.shared_gate is not None:
            self.shared_gate = packer.head(self.shared_gate)

    def forward(self, x: Rows, ops: Ops, adapters: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden_size] to the same. Adapters change no experts."""
        rows = plain(x)
        out = self.routed(rows, rows, ops)
        if self.shared_mlp is None:
            return out
        shared = self.shared_mlp(rows, ops)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(self.shared_gate(rows).to(shared.dtype))
        return out + shared

    @property
    def first(self) -> nn.Module:
        """The layer that takes the inputs, once it is packed."""
        found: nn.Module = self.gate
        return found
