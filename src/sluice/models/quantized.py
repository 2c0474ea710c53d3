"""Quantised weights in one canonical form, and the layers that hold them until a packer lays them out.

The loader makes this form of a wide checkpoint (`--quantization`), or of a checkpoint that is quantised already. It
puts a `QuantizedLinear` in the place of each `nn.Linear`, and the model's `pack` hands both kinds to the packer alike.

The definitions of their products are here too, in plain torch: a weight of int8 has a scale for each output, one of
four bits a scale for each group of inputs, and activations have a scale for each row, found when the row is multiplied
(W8A8 and W4A8 dynamic; Dettmers et al., LLM.int8(), 2022, without outliers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from sluice.models.fp8_rows import fp8_rows
from sluice.models.stored_blocks import StoredBlocks

LARGEST = 127
"""Largest magnitude of a quantised activation, and of a weight that is quantised here."""
SMALLEST_MAXIMUM = 1e-30
"""A row of values below it is zero: the inverse of its scale would not be finite."""
GROUP = 32
"""Inputs with one scale in a weight of four bits that is quantised here."""
ZERO_POINT = 8
"""The value of four bits that stands for zero in a symmetric weight."""
AT_ONCE = (1 << 15) - 1
"""Elements that are quantised at once. They stay in the cache, and torch divides fewer than 32,768 not among threads,
which would wait for each other longer than they work where something else runs on the processors."""


@dataclass(frozen=True, slots=True)
class _RowScaled:
    """A weight with a scale for each output: `values * scales[:, None]`."""

    values: torch.Tensor
    """[out_features, in_features], of `DTYPE`"""
    scales: torch.Tensor
    """[out_features] float32"""

    DTYPE: ClassVar[torch.dtype]

    def __post_init__(self) -> None:
        _check("values", self.values, self.DTYPE, (*self.values.shape[:1], *self.values.shape[-1:]))
        _check("scales", self.scales, torch.float32, self.values.shape[:1])

    @classmethod
    def joined(cls, weights: Sequence[Self]) -> Self:
        """Return the weights [.., in_features] one below the other; a single one itself, no copy."""
        if len(weights) == 1:
            return weights[0]
        return cls(torch.cat([weight.values for weight in weights]), torch.cat([weight.scales for weight in weights]))

    def to(self, device: torch.device) -> Self:
        """Return a copy of its own on a device."""
        return type(self)(self.values.to(device, copy=True), self.scales.to(device, copy=True))

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


class Int8Weight(_RowScaled):
    """A weight of symmetric int8: `values * scales[:, None]`.

    Raises:
        ValueError: a tensor has another shape or dtype than its field.
    """

    __slots__ = ()
    DTYPE = torch.int8

    @classmethod
    def quantize(cls, weight: torch.Tensor, inputs: slice = slice(None)) -> Self:
        """Quantise a weight [out_features, in_features] of a floating-point dtype, rounding to the nearest.

        Args:
            inputs: those to keep; the scales are those of all.

        Raises:
            ValueError: it holds a value that is infinite or no number.
        """
        values = torch.empty(weight[:, inputs].shape, dtype=torch.int8, device=weight.device)
        scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
        rows = max(1, AT_ONCE // weight.shape[1])
        for part, to, scale in zip(weight.split(rows), values.split(rows), scales.split(rows), strict=True):
            quantised, found = quantize_rows(part)
            if not bool(found.isfinite().all()):
                raise ValueError("it holds values that are infinite or no numbers")
            to.copy_(quantised[:, inputs])
            scale.copy_(found)
        return cls(values, scales)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A weight of four bits in groups along the inputs: `scales * values + minimums`, with values from 0 to 15.

    A zero point z is a minimum of `-z * scale`. Without minimums all zero points are 8: the weight is symmetric.

    Raises:
        ValueError: a tensor has another shape or dtype than below, or groups do not divide the inputs evenly.
    """

    values: torch.Tensor
    """[out_features, in_features / 2] uint8, the value of the even input in the lower four bits."""
    scales: torch.Tensor
    """[out_features, in_features / group] float32"""
    minimums: torch.Tensor | None = None
    """[out_features, in_features / group] float32"""

    def __post_init__(self) -> None:
        _check("values", self.values, torch.uint8, (*self.values.shape[:1], *self.values.shape[-1:]))
        groups = self.scales.shape[-1]
        _check("scales", self.scales, torch.float32, (self.out_features, groups))
        if self.minimums is not None:
            _check("minimums", self.minimums, torch.float32, (self.out_features, groups))
        if groups == 0 or self.in_features % groups:
            raise ValueError(f"{groups} groups do not divide {self.in_features} inputs")

    @classmethod
    def quantize(cls, weight: torch.Tensor, group: int = GROUP) -> Self:
        """Quantise a weight [out_features, in_features] of a floating-point dtype symmetrically.

        The scale of a group brings its largest magnitude to -8. It is then moved to the one of the least squares for
        the values that this gives, and the values are rounded again. Scales are numbers of bfloat16.

        Args:
            group: neighbouring inputs with one scale.

        Raises:
            ValueError: it holds a value that is infinite or no number, or groups do not divide its inputs, or these are
                odd.
        """
        outputs, inputs = weight.shape
        if group < 1 or inputs % group or inputs % 2:
            raise ValueError(f"groups of {group} must divide its {inputs} inputs, which must be even")
        values = torch.empty((outputs, inputs // 2), dtype=torch.uint8, device=weight.device)
        scales = torch.empty((outputs, inputs // group), dtype=torch.float32, device=weight.device)
        rows = max(1, AT_ONCE // inputs)
        for part, to, scale in zip(weight.split(rows), values.split(rows), scales.split(rows), strict=True):
            quantised, found = _quantize_groups(part.float().unflatten(1, (-1, group)))
            if not bool(found.isfinite().all()):
                raise ValueError("it holds values that are infinite or no numbers")
            numbers = quantised.flatten(1).to(torch.uint8)
            to.copy_(numbers[:, ::2] | numbers[:, 1::2] << 4)
            scale.copy_(found)
        return cls(values, scales)

    @classmethod
    def with_zero_points(cls, values: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Self:
        """Return a weight with zero points [out_features, groups]; if all are 8, a symmetric one.

        Args:
            scales: [out_features, groups] of a floating-point dtype.
        """
        wide = scales.float().contiguous()
        return cls(values, wide, None if bool((zeros == ZERO_POINT).all()) else (-zeros * wide).contiguous())

    @classmethod
    def joined(cls, weights: Sequence[Self]) -> Self:
        """Return the weights [.., in_features] one below the other; a single one itself.

        Its groups are the largest that divide those of all weights.
        """
        if len(weights) == 1:
            return weights[0]
        group = math.gcd(*(weight.group for weight in weights))
        parts = [weight._in_groups(group) for weight in weights]
        values, scales = torch.cat([part.values for part in parts]), torch.cat([part.scales for part in parts])
        if all(part.minimums is None for part in parts):
            return cls(values, scales)
        minimums = [-ZERO_POINT * part.scales if part.minimums is None else part.minimums for part in parts]
        return cls(values, scales, torch.cat(minimums))

    def _in_groups(self, group: int) -> Self:
        """Return the same weight in groups of a size that divides its own."""
        times = self.group // group
        if times == 1:
            return self
        minimums = None if self.minimums is None else self.minimums.repeat_interleave(times, 1)
        return type(self)(self.values, self.scales.repeat_interleave(times, 1), minimums)

    def equals(self, other: Self) -> bool:
        """Return whether both hold the same numbers."""
        first, second = self.minimums, other.minimums
        same = torch.equal(first, second) if first is not None and second is not None else first is second
        return same and torch.equal(self.values, other.values) and torch.equal(self.scales, other.scales)

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

    def to(self, device: torch.device) -> Self:
        """Return a copy of its own on a device."""
        minimums = None if self.minimums is None else self.minimums.to(device, copy=True)
        return type(self)(self.values.to(device, copy=True), self.scales.to(device, copy=True), minimums)

    def numbers(self) -> torch.Tensor:
        """Return the values [out_features, groups, group] as int8, less the zero point if the weight is symmetric."""
        values = torch.stack((self.values & 15, self.values >> 4), dim=-1).view(torch.int8)
        return values.view(self.out_features, -1, self.group) - (ZERO_POINT if self.minimums is None else 0)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [out_features, in_features] that it stands for, rounded to `dtype`."""
        weight = self.numbers() * self.scales[..., None]
        return (weight if self.minimums is None else weight + self.minimums[..., None]).flatten(1).to(dtype)


class Fp8Weight(_RowScaled):
    """A weight in e4m3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022): `values * scales[:, None]`.

    Raises:
        ValueError: a tensor has another shape or dtype than its field.
    """

    __slots__ = ()
    DTYPE = torch.float8_e4m3fn

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> Self:
        """Quantise a weight [out_features, in_features] of a floating-point dtype, rounding to the nearest.

        Raises:
            ValueError: it holds a value that is infinite or no number.
        """
        values, scales, _ = fp8_rows(weight)
        if not bool(scales.isfinite().all()):
            raise ValueError("it holds values that are infinite or no numbers")
        return cls(values, scales)


QuantizedWeight = Int8Weight | Int4Weight | Fp8Weight | StoredBlocks
Quantizer = type[Int8Weight] | type[Int4Weight] | type[Fp8Weight]
"""What quantises a weight while it is loaded."""


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


def narrowest(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of float32 in bfloat16 or float16 if one of them holds all exactly."""
    halves = (torch.bfloat16, torch.float16)
    exact = (dtype for dtype in halves if all(torch.equal(each, each.to(dtype).float()) for each in tensors))
    chosen = next(exact, torch.float32)
    return [each.to(chosen) for each in tensors]


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


def int4_linear(x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [N, in_features] with a weight of four bits: the definition that the compiled kernels follow.

    Rows of x are quantised as in `int8_linear`. The sums of a group are of integers; scaled, they are added group by
    group, each with one rounding to float32.

    Returns:
        [N, out_features] in x's dtype.
    """
    values, scales = quantize_rows(x)
    rows, numbers = values.double().unflatten(1, (-1, weight.group)), weight.numbers().double()
    y = torch.zeros((len(x), weight.out_features), dtype=torch.float32, device=x.device)
    for group in range(weight.scales.shape[1]):
        sums = (rows[:, group] @ numbers[:, group].T).float()
        y = (sums.double() * weight.scales[:, group] + y).float()
        if weight.minimums is not None:
            total = rows[:, group].sum(1, keepdim=True)
            y = (total * weight.minimums[:, group] + y).float()
    y = y * scales[:, None]
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _quantize_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [N, groups, group] float32 to four bits; returns the values in float32 and scales [N, groups]."""
    extreme = x.gather(2, x.abs().argmax(2, keepdim=True))
    first = (x * torch.where(extreme.abs() < SMALLEST_MAXIMUM, 0.0, -ZERO_POINT / extreme)).round_().clamp_(-8, 7)
    least_squares = (x * first).sum(2) / (first * first).sum(2).clamp_(min=1.0)
    scales = least_squares.bfloat16().float()
    values = (x / torch.where(scales == 0.0, 1.0, scales)[..., None]).round_().clamp_(-8, 7)
    return values.nan_to_num_(0.0).add_(ZERO_POINT), scales


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must be {dtype} of shape {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
