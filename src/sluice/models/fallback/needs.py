"""transformers is an extra, imported where a model needs it and nowhere else."""

from __future__ import annotations

import importlib
from types import ModuleType

from sluice.models.errors import CheckpointError

INSTALL = "pip install 'sluice[transformers]'"


def need(module: str, why: str) -> ModuleType:
    """Import a module of transformers.

    Args:
        why: what needs it, the beginning of the error's sentence.

    Raises:
        CheckpointError: it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "transformers":
            raise
        raise CheckpointError(f"{why}, and transformers is not installed: {INSTALL}") from None
