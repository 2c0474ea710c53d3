"""The ways in which `sluice quantize` stores a weight: those that `--quantization` computes, as compressed-tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from sluice.models.quantized import GROUP, Int4Weight, Int8Weight


class WrittenTensor(NamedTuple):
    """One of the tensors that together store a weight."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class Scheme(ABC):
    """How weights are quantised, and how they are stored."""

    name: str
    """The value of `--quantization`."""
    format: str
    """Name of the format in compressed-tensors."""
    weights: Mapping[str, object]
    """How compressed-tensors describes the weights."""
    inputs: Mapping[str, object] | None = None
    """How it describes the activations; None: they are not quantised."""

    @abstractmethod
    def parts(self, outputs: int, inputs: int) -> Mapping[str, WrittenTensor]:
        """Return what a weight is stored as: the tensors' names behind the last dot.

        Raises:
            ValueError: the sizes are not accepted.
        """

    @abstractmethod
    def stored(self, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Quantise a weight [out_features, in_features] of a floating-point dtype, and return the parts that store it.

        Raises:
            ValueError: it holds a value that is infinite or no number.
        """


class W8A8(Scheme):
    """int8 with a scale for each output; activations are quantised when they are multiplied, each row by itself."""

    name, format = "int8", "int-quantized"
    weights = MappingProxyType({"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"})
    inputs = MappingProxyType({"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True})

    def parts(self, outputs: int, inputs: int) -> Mapping[str, WrittenTensor]:
        return {
            "weight": WrittenTensor(torch.int8, (outputs, inputs)),
            "weight_scale": WrittenTensor(torch.float32, (outputs, 1)),
        }

    def stored(self, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        quantized = Int8Weight.quantize(weight)
        return {"weight": quantized.values, "weight_scale": quantized.scales[:, None]}


class W4A16(Scheme):
    """Four bits, in groups along the inputs with one scale."""

    name, format = "int4", "pack-quantized"
    weights = MappingProxyType(
        {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    )

    def parts(self, outputs: int, inputs: int) -> Mapping[str, WrittenTensor]:
        if inputs % GROUP:
            raise ValueError(f"groups of {GROUP} do not divide its {inputs} inputs")
        return {
            "weight_packed": WrittenTensor(torch.int32, (outputs, inputs // 8)),
            "weight_scale": WrittenTensor(torch.bfloat16, (outputs, inputs // GROUP)),
            "weight_shape": WrittenTensor(torch.int64, (2,)),
        }

    def stored(self, weight: torch.Tensor) -> Mapping[str, torch.Tensor]:
        quantized = Int4Weight.quantize(weight)
        return {
            "weight_packed": quantized.values.view(torch.int32),
            "weight_scale": quantized.scales.bfloat16(),  # which it is already
            "weight_shape": torch.tensor(weight.shape),
        }


SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in (W8A8(), W4A16())})
