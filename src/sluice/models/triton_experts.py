"""The experts of a layer on a GPU, by Triton kernels that compute all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from sluice.models.experts import ClampedGate, ClampedSwiGLU, PackedExpert, PlainExperts
from sluice.models.linear import Gated, PlainLinear
from sluice.models.ops import Ops, dense_rows

DTYPES = (torch.bfloat16, torch.float16)


def triton_experts(experts: Sequence[PackedExpert]) -> PlainExperts:
    """Return the layer of packed experts: by Triton, if their weights are plain ones that it multiplies."""
    gated = [expert.gated for expert in experts if isinstance(expert.gated, Gated | ClampedGate)]
    up = [each.layer for each in gated if isinstance(each.layer, PlainLinear)]
    down = [expert.down for expert in experts if isinstance(expert.down, PlainLinear)]
    are_plain = len(up) == len(down) == len(experts) > 0 and up[0].weight.dtype in DTYPES
    if not are_plain or find_spec("triton") is None:
        return PlainExperts(experts)
    return TritonExperts(experts, gated[0], up, down)


class TritonExperts(PlainExperts):
    """The experts of a layer by a product for all of them, the activation, another product, and the sums.

    Args:
        gated: the first expert's, which has the activation.
        up: the layers of gate and up side by side.
    """

    def __init__(
        self,
        experts: Sequence[PackedExpert],
        gated: Gated | ClampedGate,
        up: Sequence[PlainLinear],
        down: Sequence[PlainLinear],
    ) -> None:
        from sluice.kernels.triton.experts import ExpertWeights

        super().__init__(experts)
        self._activation = gated.activation
        # The weights must stay where they are. The modules of the experts keep them alive.
        self._up, self._down = (
            ExpertWeights.of([layer.weight for layer in each], [layer.bias for layer in each if layer.bias is not None])
            for each in (up, down)
        )

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Return the weighted sums of the chosen experts' outputs, as `PlainExperts`."""
        from sluice.kernels.triton.experts import expert_linear, sort_pairs, weighted_sums

        pairs = sort_pairs(ids, len(self.experts))
        gate, up = expert_linear(dense_rows(x), self._up, pairs, is_sorted=False).chunk(2, dim=-1)
        inner = (
            self._activation.apply(gate, up)
            if isinstance(self._activation, ClampedSwiGLU)
            else ops.gate_and_mul(gate, up, self._activation)
        )
        assert isinstance(inner, torch.Tensor), "experts are not in FP8"
        return weighted_sums(expert_linear(inner, self._down, pairs, is_sorted=True), pairs, weights.contiguous())
