"""Compares the sizes in a `config.json` with the tensors that are there, before anything is made in these sizes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sluice.models.checkpoint import DIMENSIONS, EXPERTS, LAYERS, CheckpointConfig
from sluice.models.registry import ARCHITECTURES
from sluice.models.weights import GGUF, opened_weights

PACKED = 32
"""Numbers that one stored number may hold: two bits each in 64."""


def check_sizes(checkpoint: CheckpointConfig, folder: Path) -> None:
    """Check that layers and dimensions are not beyond what the weight files can hold.

    A GGUF file was checked when its folder was made.

    Raises:
        CheckpointError: they are, or a file is missing or broken.
    """
    if (folder / GGUF).exists():
        return
    with opened_weights(folder) as files:
        shapes = [file.shape(name) for file in files for name in file.names]
    fields = checkpoint.fields
    for name in _given(checkpoint, LAYERS):
        if fields.integer(name, minimum=0) > len(shapes):
            raise fields.error(name, f"at most {len(shapes)}, the number of tensors in the weight files")
    family = ARCHITECTURES.get(checkpoint.architecture)
    for name in _given(checkpoint, EXPERTS if family is not None and family.has_experts else ()):
        count = fields.integer(name, minimum=0)
        if count and not any(shape[0] == count for shape in shapes if shape):  # a router has a row for each
            raise fields.error(name, "the number of experts in the weight files")
    largest = max((size for shape in shapes for size in shape), default=0)
    for name in _given(checkpoint, DIMENSIONS):
        if fields.integer(name, minimum=0) > PACKED * largest:
            raise fields.error(name, f"what fits the weight files, whose largest dimension is {largest}")


def _given(checkpoint: CheckpointConfig, names: Iterable[str]) -> Iterable[str]:
    """Return the fields that have an integer; others are refused by who reads them."""
    return (name for name in names if isinstance(checkpoint.fields.get(name), int))
