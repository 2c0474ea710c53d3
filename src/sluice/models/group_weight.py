"""A weight of small integers in groups of inputs, each group with a scale and perhaps a minimum."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GroupWeight:
    """A weight `(numbers - zero) * scales + minimums`, in groups along the inputs.

    The block types of GGUF files have this form, and the weights of four bits of `Int4Weight` too.

    Raises:
        ValueError: a tensor has another shape or dtype than below, or groups do not divide the inputs evenly.
    """

    numbers: torch.Tensor
    """[out_features, in_features] uint8"""
    zero: int
    """The number that stands for zero."""
    scales: torch.Tensor
    """[out_features, in_features / group] float32"""
    minimums: torch.Tensor | None = None
    """[out_features, in_features / group] float32"""

    def __post_init__(self) -> None:
        groups = self.scales.shape[-1]
        _check("numbers", self.numbers, torch.uint8, (self.numbers.shape[0], self.numbers.shape[-1]))
        _check("scales", self.scales, torch.float32, (self.out_features, groups))
        if self.minimums is not None:
            _check("minimums", self.minimums, torch.float32, (self.out_features, groups))
        if groups == 0 or self.in_features % groups:
            raise ValueError(f"{groups} groups do not divide {self.in_features} inputs")

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return self.numbers.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return self.numbers.shape[1]

    @property
    def group(self) -> int:
        """Neighbouring inputs with one scale."""
        return self.in_features // self.scales.shape[1]

    def signed(self) -> torch.Tensor:
        """Return the numbers less the one for zero, [out_features, groups, group] float32."""
        return self.numbers.float().sub_(self.zero).unflatten(1, (-1, self.group))

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight [out_features, in_features] that it stands for, rounded to `dtype`."""
        weight = self.signed().mul_(self.scales[..., None])
        if self.minimums is not None:
            weight += self.minimums[..., None]
        return weight.flatten(1).to(dtype)


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {dtype} of shape {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
