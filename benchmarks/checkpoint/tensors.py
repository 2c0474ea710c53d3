"""A tensor of a checkpoint without its values."""

from __future__ import annotations

from typing import NamedTuple


class TensorShape(NamedTuple):
    """A tensor of a checkpoint. A norm's weights are ones and a bias is zero; everything else is drawn."""

    name: str
    shape: tuple[int, ...]
    fill: float | None = None
    """Value of all elements; None for random ones."""
