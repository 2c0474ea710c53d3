"""How far quantised weights are from those that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tqdm import tqdm

from sluice.cli.quantize.source import Source
from sluice.models.checkpoint import CheckpointError
from sluice.models.quantized import Quantizer

AT_ONCE = 1 << 21
"""Elements that are compared at once."""


class WeightError(NamedTuple):
    """The errors of one weight."""

    name: str
    """In the checkpoint."""
    shape: tuple[int, int]
    errors: Mapping[str, float]
    """By the value of `--quantization`: the norm of the difference over the norm of the weight."""


def weight_errors(source: Source, quantizations: Sequence[str], *, progress: bool) -> list[WeightError]:
    """Quantise every weight that `--quantization` would, a slice at a time.

    Raises:
        CheckpointError: a file or a weight is broken.
    """
    kinds = {quantization: source.kinds(quantization) for quantization in quantizations}
    found = []
    for weight in tqdm(source.weights(), desc="comparing weights", unit="", leave=False, disable=not progress):
        try:
            errors = {name: relative_error(weight.value, kind[weight.inner_name]) for name, kind in kinds.items()}
        except ValueError as error:
            raise CheckpointError(f"tensor {weight.name} cannot be quantised: {error}") from None
        outputs, inputs = weight.value.shape
        found.append(WeightError(weight.name, (outputs, inputs), errors))
    return found


def relative_error(weight: torch.Tensor, kind: Quantizer) -> float:
    """Return the norm of what quantising changes in a weight [outputs, inputs], over the weight's norm."""
    changed = total = 0.0
    for rows in weight.split(max(1, AT_ONCE // weight.shape[1])):
        wide = rows.float()
        difference = kind.quantize(rows).dense(torch.float32) - wide
        changed += float(difference.double().square().sum())
        total += float(wide.double().square().sum())
    return float((changed / total) ** 0.5) if total else 0.0
