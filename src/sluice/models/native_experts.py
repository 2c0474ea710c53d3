"""The experts of a layer by one call of the compiled kernels (`kernels/cpu/expert_calls.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from sluice.kernels.cpu.abi import ExpertsCall
from sluice.kernels.cpu.library import Kernels
from sluice.models.experts import PackedExpert, PlainExperts
from sluice.models.grouped_layers import GroupedLinear
from sluice.models.native_linear import NativeGated, NativeLinear
from sluice.models.native_rows import run_rows

Layer = NativeLinear | GroupedLinear


def native_experts(kernels: Kernels, experts: Sequence[PackedExpert]) -> PlainExperts:
    """Return the layer of packed experts: one call, if the kernels compute all of them in the same way.

    They may not if weights of four bits have minimums in some experts only, or one expert has another kind of weights.
    """
    gated = [expert.gated.layer for expert in experts if isinstance(expert.gated, NativeGated)]
    down = [expert.down for expert in experts if isinstance(expert.down, NativeLinear | GroupedLinear)]
    are_native = len(gated) == len(down) == len(experts) > 0
    if not are_native or len(set(map(_form, gated))) > 1 or len(set(map(_form, down))) > 1:
        return PlainExperts(experts)
    return NativeExperts(kernels, experts, gated, down)


class NativeExperts(PlainExperts):
    """The experts of a layer by one call of the kernels. Its results are those of calls for each expert, bit for bit.

    On AMX tiles products in bfloat16 are the exception: they are always summed as for many rows.

    Args:
        gated: of each expert.
        down: of each expert.
    """

    def __init__(
        self, kernels: Kernels, experts: Sequence[PackedExpert], gated: Sequence[Layer], down: Sequence[Layer]
    ) -> None:
        super().__init__(experts)
        self._kernels = kernels
        # Kept alive: the call has their addresses.
        self._up, self._down = _addresses(gated), _addresses(down)
        self._call = ExpertsCall(
            up=ctypes.addressof(self._up),
            down=ctypes.addressof(self._down),
            experts=len(experts),
            in_features=down[0].out_features,
            inner=gated[0].out_features,
            up_is_grouped=isinstance(gated[0], GroupedLinear),
            down_is_grouped=isinstance(down[0], GroupedLinear),
        )

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, ops: object) -> torch.Tensor:
        """Return the weighted sums of the chosen experts' outputs, as `PlainExperts`, in bfloat16."""
        ids, weights = ids.contiguous(), weights.contiguous()
        assert weights.dtype == torch.float32, "the kernel reads float32"
        call = self._call
        call.ids, call.weights, call.choices = ids.data_ptr(), weights.data_ptr(), ids.shape[1]
        return run_rows(self._kernels.experts, call, x, torch.empty(x.shape, dtype=x.dtype))


def _addresses(layers: Sequence[Layer]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(layers))(*(ctypes.addressof(layer.call) for layer in layers))


def _form(layer: Layer) -> tuple[object, ...]:
    """Return what must be the same for all experts: sizes, and how rows are quantised."""
    if isinstance(layer, GroupedLinear):
        return "grouped", layer.call.in_features, layer.out_features
    call = layer.call
    form = layer.packed.dtype, call.group, layer.minimums is None
    return "linear", call.in_features, layer.out_features, *form
