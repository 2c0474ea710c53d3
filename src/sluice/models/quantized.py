"""Quantised weights in one canonical form, and the layers that hold them until a packer lays them out.

The loader makes this form of a wide checkpoint (`--quantization`), or of a checkpoint that is quantised already. It
puts a `QuantizedLinear` in the place of each `nn.Linear`, and the model's `pack` hands both kinds to the packer alike.

The definition of int8 products is here too, in plain torch: weights have a scale for each output, activations a scale
for each row, found when the row is multiplied (W8A8 dynamic; Dettmers et al., LLM.int8(), 2022, without outliers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

LARGEST = 127
"""Largest magnitude of a quantised activation, and of a weight that is quantised here."""
SMALLEST_MAXIMUM = 1e-30
"""A row of values below it is zero: the inverse of its scale would not be finite."""
AT_ONCE = (1 << 15) - 1
"""Elements that are quantised at once. They stay in the cache, and torch divides fewer than 32,768 not among threads,
which would wait for each other longer than they work where something else runs on the processors."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight of symmetric int8: `values * scales[:, None]`.

    Raises:
        ValueError: a tensor has another shape or dtype than below.
    """

    values: torch.Tensor
    """[out_features, in_features] int8"""
    scales: torch.Tensor
    """[out_features] float32"""

    def __post_init__(self) -> None:
        _check("values", self.values, torch.int8, (*self.values.shape[:1], *self.values.shape[-1:]))
        _check("scales", self.scales, torch.float32, self.values.shape[:1])

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> Self:
        """Quantise a weight [out_features, in_features] of a floating-point dtype, rounding to the nearest.

        Raises:
            ValueError: it holds a value that is infinite or no number.
        """
        values = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
        rows = max(1, AT_ONCE // weight.shape[1])
        for part, to, scale in zip(weight.split(rows), values.split(rows), scales.split(rows), strict=True):
            quantised, found = quantize_rows(part)
            if not bool(found.isfinite().all()):
                raise ValueError("it holds values that are infinite or no numbers")
            to.copy_(quantised)
            scale.copy_(found)
        return cls(values, scales)

    @classmethod
    def joined(cls, weights: Sequence[Self]) -> Self:
        """Return the weights [.., in_features] one below the other; a single one itself, no copy."""
        if len(weights) == 1:
            return weights[0]
        return cls(torch.cat([weight.values for weight in weights]), torch.cat([weight.scales for weight in weights]))

    def equals(self, other: Self) -> bool:
        """Return whether both hold the same numbers."""
        return torch.equal(self.values, other.values) and torch.equal(self.scales, other.scales)

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return self.values.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return self.values.shape[1]

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [out_features, in_features] that it stands for, rounded to `dtype`."""
        return (self.values.float() * self.scales[:, None]).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A weight of four bits in groups along the inputs: `scales * values + minimums`, with values from 0 to 15.

    A zero point z is a minimum of `-z * scale`.

    Raises:
        ValueError: a tensor has another shape or dtype than below, or groups do not divide the inputs evenly.
    """

    values: torch.Tensor
    """[out_features, in_features / 2] uint8, the value of the even input in the lower four bits."""
    scales: torch.Tensor
    """[out_features, in_features / group] float32"""
    minimums: torch.Tensor
    """[out_features, in_features / group] float32"""

    def __post_init__(self) -> None:
        _check("values", self.values, torch.uint8, (*self.values.shape[:1], *self.values.shape[-1:]))
        groups = self.scales.shape[-1]
        _check("scales", self.scales, torch.float32, (self.out_features, groups))
        _check("minimums", self.minimums, torch.float32, (self.out_features, groups))
        if groups == 0 or self.in_features % groups:
            raise ValueError(f"{groups} groups do not divide {self.in_features} inputs")

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return self.values.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return 2 * self.values.shape[1]

    @property
    def group(self) -> int:
        """Neighbouring inputs with one scale."""
        return self.in_features // self.scales.shape[1]

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [out_features, in_features] that it stands for, rounded to `dtype`."""
        values = torch.stack((self.values & 15, self.values >> 4), dim=-1).view(self.out_features, -1, self.group)
        return (values * self.scales[..., None] + self.minimums[..., None]).flatten(1).to(dtype)


QuantizedWeight = Int8Weight | Int4Weight


class QuantizedLinear(nn.Module):
    """A linear layer, or an embedding, with a quantised weight, as it was read.

    It computes nothing: a packer makes it a layer that does.

    Args:
        bias: [out_features], in `dtype`.
        dtype: the model's.
    """

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.dtype = dtype

    @property
    def out_features(self) -> int:
        """Outputs of the layer."""
        return self.weight.out_features

    @property
    def in_features(self) -> int:
        """Inputs of the layer."""
        return self.weight.in_features


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows x [N, size] symmetrically, each by its largest magnitude.

    Returns:
        Values [N, size] int8 from -127 to 127, and scales [N] float32. A row with an infinite value or no number has
        such a scale.
    """
    wide = x.float()
    largest = wide.abs().amax(1)
    is_zero = largest < SMALLEST_MAXIMUM
    # A tensor over a tensor: torch multiplies a number with the reciprocal, which rounds twice.
    inverse = torch.where(is_zero, 0.0, largest.new_tensor(LARGEST) / largest)
    values = (wide * inverse[:, None]).round_().nan_to_num_(0.0).to(torch.int8)
    return values, torch.where(is_zero, 0.0, largest / LARGEST)


def int8_linear(x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [N, in_features] with a weight in int8: the definition that the compiled kernels follow.

    Returns:
        [N, out_features] in x's dtype: sums of integers, which are exact, times both scales.
    """
    values, scales = quantize_rows(x)
    sums = values.double() @ weight.values.double().T
    y = sums.float() * (scales[:, None] * weight.scales)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must be {dtype} of shape {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
