"""The packer for CUDA devices, and the products with quantised weights among which it chooses.

A product describes itself: what its weights are, and where it can compute them. To add one, write a class and name it
in `PRODUCTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

import torch
from torch import nn

from sluice.models.experts import ExpertActivation, ExpertLayers
from sluice.models.fp8_rows import Fp8Rows
from sluice.models.linear import Fp8Linear, Packer, PlainLinear
from sluice.models.ops import dense_rows
from sluice.models.quantized import Fp8Weight, Int4Weight, QuantizedWeight, narrowest
from sluice.models.triton_experts import triton_experts

MAX_ROW = 1 << 15
"""Largest row of activations that a kernel quantises, in elements: it is kept in registers."""


class Product(ABC):
    """A product with one kind of quantised weight."""

    kind: str
    """"int4" or "fp8"."""
    weight: type[QuantizedWeight]
    dtypes: tuple[torch.dtype, ...]
    """Dtypes of the models that it computes."""
    oldest: tuple[int, int]
    """The lowest compute capability that it supports."""

    def supports(self, device: torch.device) -> str | None:
        """Return why it cannot compute on a device, or None if it can."""
        if find_spec("triton") is None:
            return "the package triton is not installed"
        if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < self.oldest:
            needed, found = (".".join(map(str, each)) for each in (self.oldest, capability))
            return f"compute capability {needed} or newer is needed, {torch.cuda.get_device_name(device)} has {found}"
        return None

    @abstractmethod
    def takes(self, weight: QuantizedWeight) -> bool:
        """Return whether it can compute a weight, which is of its kind."""

    @abstractmethod
    def layer(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> nn.Module:
        """Create the layer of a weight that it takes."""


class RowWiseFp8(Product):
    """e4m3 on both sides, with a scale for each row and output, by `torch._scaled_mm`."""

    kind, weight = "fp8", Fp8Weight
    dtypes = (torch.bfloat16,)
    oldest = (9, 0)

    def takes(self, weight: QuantizedWeight) -> bool:
        return weight.in_features % 16 == 0 and weight.out_features % 16 == 0 and weight.in_features <= MAX_ROW

    def layer(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> nn.Module:
        from sluice.kernels.triton.fp8 import quantize_rows

        assert isinstance(weight, Fp8Weight), f"a weight of {type(weight).__name__}"
        return Fp8Linear(weight, bias, lambda x: Fp8Rows(*quantize_rows(dense_rows(x)), x.dtype))


class W4A16(Product):
    """Four bits, dequantised to the model's dtype in registers, by Triton."""

    kind, weight = "int4", Int4Weight
    dtypes = (torch.bfloat16, torch.float16)
    oldest = (8, 0)

    def takes(self, weight: QuantizedWeight) -> bool:
        assert isinstance(weight, Int4Weight), f"a weight of {type(weight).__name__}"
        from sluice.kernels.triton.int4_linear import INPUTS

        return weight.group % INPUTS == 0 or INPUTS % weight.group == 0 or weight.group == weight.in_features

    def layer(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> nn.Module:
        assert isinstance(weight, Int4Weight), f"a weight of {type(weight).__name__}"
        return W4A16Linear(weight, bias)


PRODUCTS: Sequence[Product] = (RowWiseFp8(), W4A16())


class W4A16Linear(nn.Module):
    """A product with a weight of four bits by Triton."""

    values: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, weight: Int4Weight, bias: torch.Tensor | None) -> None:
        super().__init__()
        scales, *minimums = narrowest([each for each in (weight.scales, weight.minimums) if each is not None])
        held = {"values": weight.values, "scales": scales, "minimums": minimums[0] if minimums else None, "bias": bias}
        for name, value in held.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, in_features] to [N, out_features]."""
        from sluice.kernels.triton.int4_linear import int4_linear

        return int4_linear(dense_rows(x), self.values, self.scales, self.minimums, self.bias)


class CudaPacker(Packer):
    """Leaves plain weights to torch, and each kind of quantised ones to the product that supports the device.

    Weights that no product takes are dequantised.
    """

    def __init__(self, device: torch.device, products: Sequence[Product] = PRODUCTS) -> None:
        self._products = {product.kind: product for product in products}
        self._problems = {kind: product.supports(device) for kind, product in self._products.items()}

    def why_not(self, kind: str, dtype: torch.dtype) -> str | None:
        if kind not in self._products:
            return f"there is no product in {kind} on a GPU"
        dtypes = self._products[kind].dtypes
        if dtype not in dtypes:
            names = " or ".join(str(each).removeprefix("torch.") for each in dtypes)
            return f"products in {kind} need --dtype {names}"
        return self._problems[kind]

    def experts(self, experts: Iterable[ExpertLayers], activation: ExpertActivation) -> nn.Module:
        return triton_experts([self._expert(layers, activation) for layers in experts])

    def _product(
        self, weight: torch.Tensor | QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> nn.Module:
        if isinstance(weight, torch.Tensor):
            return PlainLinear(weight, bias)
        for product in self._products.values():
            is_able = isinstance(weight, product.weight) and self.why_not(product.kind, dtype) is None
            if is_able and product.takes(weight):
                return product.layer(weight, bias)
        self.widened += 1
        return PlainLinear(weight.dense(dtype), bias)
