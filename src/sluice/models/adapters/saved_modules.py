"""Whole weights in an adapter's file. PEFT stores those of `modules_to_save`, and some embeddings, even if training
has not changed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from sluice.models.adapters.adapter import AdapterError
from sluice.models.base import WeightRules
from sluice.models.weights import WeightFile, opened_weights

WRAPPERS = (".modules_to_save", ".base_layer", ".original_module")
"""Parts of names by which PEFT's wrappers of a layer are stored."""


def refuse_changed(saved: Mapping[str, torch.Tensor], base: Path | None, rules: WeightRules) -> None:
    """Refuse weights that are not those of the base model.

    Args:
        saved: by name, as in the base model but for `WRAPPERS`.
        base: the base model's folder; None: its weights are not in safetensors files.
        rules: of the base model.

    Raises:
        AdapterError: one is not there, or has other values.
        CheckpointError: the base model's files cannot be read.
    """
    if not saved:
        return
    if base is None:
        raise AdapterError(
            f"the adapter holds {min(saved)} itself, which can only be compared with the weights of a Hugging Face"
            " folder: save it without modules_to_save"
        )
    with _weights(base, rules) as own:
        for name, value in saved.items():
            inner = rules.inner(_plain(name))
            file = own.get(inner) or (own.get(rules.embedding) if inner == rules.head else None)
            if file is None:
                raise AdapterError(f"the adapter holds {name}, which the base model does not have")
            stored = file[0].read(file[1])
            if stored.shape != value.shape or not torch.equal(stored.to(value.dtype), value):
                raise AdapterError(
                    f"the adapter holds {name} itself, with other values than the base model's: adapters change linear"
                    " layers by pairs of matrices alone"
                )


@contextmanager
def _weights(folder: Path, rules: WeightRules) -> Iterator[dict[str, tuple[WeightFile, str]]]:
    """Return the file and the stored name of each weight, by the module's name."""
    with opened_weights(folder) as files:
        yield {rules.inner(name): (file, name) for file in files for name in file.names}


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name
