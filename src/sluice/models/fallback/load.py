"""Loads models that Sluice has no class for: transformers computes them, except attention, which is ours.

transformers is an optional dependency. It is imported only when a model needs it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import torch

from sluice.models.base import PagedLM
from sluice.models.checkpoint import CheckpointConfig, CheckpointError
from sluice.models.weights import weight_files

INSTALL = "pip install 'sluice-llm[transformers]'"


def need(module: str, why: str) -> ModuleType:
    """Import a module of transformers.

    Args:
        why: the beginning of the error message: what needs the module.

    Raises:
        CheckpointError: transformers is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "transformers":
            raise
        raise CheckpointError(f"{why}, and transformers is not installed: {INSTALL}") from None


def load_fallback(
    folder: Path, checkpoint: CheckpointConfig, *, dtype: torch.dtype, device: torch.device, progress: bool
) -> PagedLM:
    """Load a checkpoint of any architecture that transformers computes with a replaceable attention.

    Raises:
        CheckpointError: transformers is not installed, does not know the architecture or cannot run it over paged KV;
            or a file or a tensor is missing, broken or unexpected.
    """
    need("transformers", f"{checkpoint.architecture} runs through transformers")
    weight_files(folder)  # refuses pickled weights
    from sluice.models.fallback.open import open_model

    return open_model(folder, checkpoint, dtype=dtype, device=device, progress=progress)
