"""An adapter as its files have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch


class StoredMatrix(NamedTuple):
    """A matrix of an adapter."""

    name: str
    """Of the tensor in its file."""
    value: torch.Tensor


@dataclass(slots=True)
class StoredPair:
    """What a file has for a layer."""

    a: StoredMatrix | None = None
    """[rank, in_features]"""
    b: StoredMatrix | None = None
    """[out_features, rank]"""

    def put(self, matrix: StoredMatrix, *, is_a: bool) -> None:
        """Take one of the two."""
        if is_a:
            self.a = matrix
        else:
            self.b = matrix


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter as its files have it."""

    file: str
    """Name of the file of matrices."""
    digest: str
    alpha: float
    pairs: Mapping[str, StoredPair]
    """By the layer's name in the model, with rows in the model's order."""
    scales: Mapping[str, float]
    """Factor of each layer's product."""
    ranks: Mapping[str, int]
    """The rank of each layer by the config; empty if the file has only the matrices."""
