"""The adapters beside a model: whether it takes any, and their memory."""

from __future__ import annotations

from pathlib import Path

from sluice.config import ConfigError, EngineConfig
from sluice.models.adapter_bank import AdapterBank
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder


def bank_of(config: EngineConfig, model: PagedLM, folder: Path) -> AdapterBank | None:
    """Return the adapters beside a model, for which all memory is allocated now; None: the options ask for none.

    Args:
        folder: of the model, or its GGUF file.

    Raises:
        ConfigError: the model takes none.
    """
    limits = config.lora.limits()
    if limits is None:
        return None
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"--enable-lora: {model.spec.architecture} runs through transformers, beside whose weights there are no"
            " adapters; leave it out"
        )
    if model.spec.diffusion is not None:
        raise ConfigError(
            f"--enable-lora: adapters of {model.spec.architecture}, a model of block diffusion, are not"
            " supported; leave it out"
        )
    return AdapterBank(model, limits, folder if folder.is_dir() else None)
