"""Imports the libraries of the extra `quantized`, which only checkpoints of some formats need."""

from __future__ import annotations

import importlib
from types import ModuleType

from sluice.models.checkpoint import CheckpointError

INSTALL = "pip install 'sluice-llm[quantized]'"


def need(module: str, why: str) -> ModuleType:
    """Import a module of the extra.

    Args:
        module: its full name.
        why: the beginning of the error message: what needs the module.

    Raises:
        CheckpointError: its package is not installed; the message says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise CheckpointError(f"{why} needs the package {package.replace('_', '-')}: {INSTALL}") from None
