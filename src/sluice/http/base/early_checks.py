"""What the metadata of a model refuses at once, long before an engine would: it first loads torch."""

from __future__ import annotations

from pathlib import Path

from sluice.assembly.refusals import check_context
from sluice.config import ModelConfig
from sluice.models.formats.gguf_config import model_config
from sluice.models.formats.gguf_folder import gguf_at
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.hub import check_path


def check_model(model: ModelConfig) -> None:
    """Check that a file or folder exists, and the metadata of a GGUF file. All else is left to the engine.

    Raises:
        CheckpointError: it does not, or the file is broken or not supported.
        ConfigError: the options ask for a longer context than the model has.
    """
    if not model.model:
        return
    check_path(model.model)
    file = gguf_at(Path(model.model).expanduser())
    if file is not None:
        check_context(model.context_length, model_config(open_gguf(file))["max_position_embeddings"])
