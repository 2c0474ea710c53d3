"""Loads the class of a native family, when it is asked for."""

from __future__ import annotations

from importlib import import_module

from sluice.models.base import CausalLM
from sluice.models.checkpoint import CheckpointError
from sluice.models.registry import ARCHITECTURES


def model_class(architecture: str) -> type[CausalLM]:
    """Return the native class for a name in the `architectures` of a `config.json`.

    Raises:
        CheckpointError: there is none; the message lists the supported ones.
    """
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {architecture!r} is not supported natively; known: {', '.join(ARCHITECTURES)}; others"
            " may run with --model-impl transformers"
        )
    where = ARCHITECTURES[architecture].where
    module, _, name = where.partition(":")
    found = vars(import_module(f"sluice.models.families.{module}"))[name]
    assert issubclass(found, CausalLM), f"{where} is not a model"
    return found
