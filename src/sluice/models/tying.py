"""Finds out whether a checkpoint has a head of its own, although its `config.json` ties the head to the embedding.

A model that was trained further with the two untied may still have the flag, and would lose its head.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from sluice.models.base import WeightRules
from sluice.models.weights import GGUF, WeightFile, opened_weights

LOGGER = logging.getLogger("sluice.models")
AT_ONCE = 1 << 24
"""Elements that are compared at once."""


def has_own_head(folder: Path, rules: WeightRules, dtype: torch.dtype) -> bool:
    """Return whether a checkpoint stores a head that differs from its embedding, and warn if it does.

    Args:
        folder: the checkpoint's. A GGUF file has a head only if it is not tied.
        dtype: of the model. Values that are equal in it do not differ.

    Raises:
        CheckpointError: a weight file is missing or broken.
    """
    if (folder / GGUF).exists():
        return False
    with opened_weights(folder) as files:
        head, embedding = (_parts(files, rules, name) for name in (rules.head, rules.embedding))
        if not head or not embedding:
            return False
        same = head.keys() == embedding.keys() and all(
            _equal(*head[part], *embedding[part], dtype=dtype) for part in head
        )
    if not same:
        LOGGER.warning(
            "config.json ties %s to %s, but the checkpoint stores a head that differs: the stored one is used",
            rules.head,
            rules.embedding,
        )
    return not same


def _parts(files: list[WeightFile], rules: WeightRules, weight: str) -> dict[str, tuple[WeightFile, str]]:
    """Return the file and the name of each tensor of a module, by its name behind the last dot."""
    module = weight.removesuffix(".weight")
    found = {}
    for file in files:
        for name in file.names:
            owner, _, part = rules.inner(name).rpartition(".")
            if owner == module:
                found[part] = file, name
    return found


def _equal(file: WeightFile, name: str, other_file: WeightFile, other_name: str, *, dtype: torch.dtype) -> bool:
    """Return whether two stored tensors are equal."""
    first, second = file.read(name), other_file.read(other_name)
    if first.shape != second.shape:
        return False
    if not (first.is_floating_point() and second.is_floating_point()):
        return torch.equal(first, second)
    pieces = zip(first.reshape(-1).split(AT_ONCE), second.reshape(-1).split(AT_ONCE), strict=True)
    return all(torch.equal(one.to(dtype), other.to(dtype)) for one, other in pieces)
