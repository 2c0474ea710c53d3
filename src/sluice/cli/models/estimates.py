"""What a model on this machine needs, from its sizes; nothing is downloaded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from sluice.assembly.devices import TORCH
from sluice.cli.models.cached import CachedModel, cached_gguf
from sluice.config import ModelConfig
from sluice.models.catalog.estimate import NUMBER_SIZES, Estimate
from sluice.models.catalog.gguf_sizes import GGUFSizes
from sluice.models.catalog.read_sizes import read_sizes
from sluice.models.catalog.sizes import ModelSizes
from sluice.models.catalog.suggested import SUGGESTED
from sluice.models.checkpoint import CheckpointError
from sluice.models.default_model import NAME, default_file
from sluice.models.formats.gguf_config import METHOD
from sluice.models.formats.gguf_folder import SUFFIX, gguf_at


def estimate_of(model: ModelConfig) -> tuple[Estimate, str]:
    """Return what the model that the options name needs, and how that is known.

    Args:
        model: resolved for this machine.

    Raises:
        CheckpointError: it is neither on this machine nor suggested, or its sizes are not known.
    """
    file = _gguf_file(model)
    if file is not None:
        return _of_gguf(file, model)
    sizes, source = _sizes(model.model, model.revision, model.download_dir)
    quantization = model.quantization or "none"
    if quantization not in NUMBER_SIZES:
        raise CheckpointError(f"--quantization {quantization} depends on the checkpoint")
    return Estimate(sizes, quantization), f"{_numbers(sizes, sizes.stored, quantization)} ({source})"


def estimate_as_it_is(found: CachedModel, machine: ModelConfig) -> Estimate | None:
    """Return what a model needs that is on this machine; None: that is not known.

    Args:
        machine: options without a model, resolved for this machine.
    """
    try:
        if found.file is not None:
            return _of_gguf(found.file, machine)[0]
        return Estimate(read_sizes(found.folder))
    except CheckpointError:
        return None


def _of_gguf(file: Path, model: ModelConfig) -> tuple[Estimate, str]:
    found, asked = GGUFSizes.read(file), model.quantization
    if asked not in (None, METHOD, *NUMBER_SIZES):
        raise CheckpointError(f"--quantization {asked}: {file.name} is a GGUF file")
    computes_blocks = model.device == "cpu" and model.cpu_kernels != TORCH and model.dtype in ("auto", "bfloat16")
    estimate = found.estimate(asked, computes_blocks=computes_blocks)
    if estimate.stored is not None:
        return estimate, f"{found.numbers / 1e6:.0f} million numbers, computed as stored: {found.types}"
    numbers = _numbers(found.sizes, found.numbers, estimate.quantization)
    return estimate, f"{numbers}, made of {found.types}"


def _gguf_file(model: ModelConfig) -> Path | None:
    """Return the GGUF file that a model is, if it is one that is on this machine.

    Raises:
        CheckpointError: there is no such file, or several.
    """
    if not model.model:
        file = default_file(model.cache)
        if file is None:
            raise CheckpointError(f"the default model, {NAME}, is not on this machine yet")
        return file
    name, path = model.model, Path(model.model).expanduser()
    file = gguf_at(path)
    if file is not None or path.is_dir():
        return file
    if path.is_file():
        raise CheckpointError(f"{name} is neither a folder nor a GGUF file ({SUFFIX})")
    if path.suffix == SUFFIX and ":" not in name:
        raise CheckpointError(f"there is no file {name}")
    return cached_gguf(name, model.download_dir)


def _numbers(sizes: ModelSizes, numbers: int, quantization: str) -> str:
    kind = "16 bits" if quantization == "none" else quantization
    copied = ", the embedding twice" if sizes.tied and quantization == "none" else ""
    return f"{numbers / 1e6:.0f} million numbers in {kind}{copied}"


def _sizes(model: str, revision: str | None, folder: str | None) -> tuple[ModelSizes, str]:
    """Return the sizes of a model that is on this machine or suggested, and where they are from.

    Raises:
        CheckpointError: it is neither, or its sizes are not known.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return read_sizes(path), "config.json"
    cached = None
    with suppress(HFValidationError):  # no hub id
        cached = try_to_load_from_cache(model, "config.json", cache_dir=folder, revision=revision)
    if isinstance(cached, str):
        return read_sizes(Path(cached)), "config.json in the hub's cache"
    for each in SUGGESTED:
        if each.id == model:
            return each.sizes, "known sizes"
    raise CheckpointError(f"{model} is not on this machine")
