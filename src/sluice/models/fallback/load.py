"""Models without a file of their own here: loaded and computed by transformers, their attention by us."""

from __future__ import annotations

from pathlib import Path

import torch

from sluice.models.base import PagedLM
from sluice.models.fallback.needs import need
from sluice.models.hf_config import CheckpointConfig
from sluice.models.weights import weight_files


def load_fallback(
    folder: Path, checkpoint: CheckpointConfig, *, dtype: torch.dtype, device: torch.device, progress: bool
) -> PagedLM:
    """Load a checkpoint of any architecture that transformers computes with a replaceable attention.

    Raises:
        CheckpointError: transformers is not installed, does not know the architecture or cannot run it over paged KV;
            or a file or a tensor is missing, broken or unexpected.
    """
    need("transformers", f"{checkpoint.architecture} runs through transformers")
    weight_files(folder)  # refuses pickles with a reason of its own
    from sluice.models.fallback.open import open_model

    return open_model(folder, checkpoint, dtype=dtype, device=device, progress=progress)
