"""A model's own sampling settings: `generation_config.json`, as transformers and vLLM use it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from sluice.config import ConfigError, ModelConfig
from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.spec import ModelSpec
from sluice.types import SamplingDefaults

LOGGER = logging.getLogger("sluice.engine")
FILE = "generation_config.json"
OVERRIDE = "--override-generation-config"
NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "do_sample": "do_sample",
}
"""Fields of the file that are used -> our names of them. Others are for transformers alone."""


def resolved_sampling(config: ModelConfig, folder: Path, spec: ModelSpec) -> tuple[SamplingDefaults, dict[str, str]]:
    """Return the model's own settings for what requests leave open, and the reason that tells them, if there are any.

    Args:
        folder: that of the model.

    Raises:
        CheckpointError, ConfigError: as `sampling_defaults` and `without_penalty`.
    """
    found = sampling_defaults(config, folder)
    defaults = found if spec.diffusion is None else without_penalty(found, config)
    parts = [f"{name} {value}" for name, value in defaults.as_dict().items()]
    if defaults != found:
        parts.append(f"without repetition_penalty {found.repetition_penalty}, which block diffusion does not support")
        LOGGER.warning("the model's sampling settings are used %s", parts[-1])
    return defaults, {"generation_config": ", ".join(parts)} if parts else {}


def sampling_defaults(config: ModelConfig, checkpoint: Path) -> SamplingDefaults:
    """Return what requests get for the sampling parameters that they leave open.

    Args:
        checkpoint: folder of the model.

    Raises:
        CheckpointError: the file is not valid.
        ConfigError: there is no file in the folder that was set, or the overrides are not valid.
    """
    given = config.generation_config
    folder = {"auto": checkpoint, "none": None}.get(given, Path(given))
    has_file = folder is not None and (folder / FILE).is_file()
    if given not in ("auto", "none") and not has_file:
        raise ConfigError(f"--generation-config must be auto, none, or a folder with {FILE}, got {given!r}")
    fields = Fields.read(folder / FILE) if folder is not None and has_file else Fields({}, FILE)
    own = {name: fields.get(name) for name in NAMES}
    try:
        defaults = _defaults(own)
    except ValueError as error:
        raise CheckpointError(f"{folder}/{FILE}: {error}") from error
    if config.override_generation_config is None:
        return defaults
    overrides = _parsed(config.override_generation_config)
    if "temperature" in overrides:
        own["do_sample"] = None
    try:
        return _defaults(own | overrides)
    except ValueError as error:
        raise ConfigError(f"{OVERRIDE}: {error}") from error


def without_penalty(defaults: SamplingDefaults, config: ModelConfig) -> SamplingDefaults:
    """Return the settings of a model of block diffusion: without a repetition penalty, with which it would refuse every
    request.

    Raises:
        ConfigError: the penalty was set by an option.
    """
    if defaults.repetition_penalty in (None, 1):
        return defaults
    given = config.override_generation_config
    if given is not None and "repetition_penalty" in _parsed(given):
        raise ConfigError(
            f"{OVERRIDE}: repetition_penalty {defaults.repetition_penalty} is not supported by a model of block"
            " diffusion, which draws several tokens at once; leave it out"
        )
    return replace(defaults, repetition_penalty=None)


def _parsed(overrides: str) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(overrides, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{OVERRIDE} must be a JSON object, got {overrides!r}") from error
    unknown = next((name for name in content if name not in NAMES), None)
    if unknown is not None:
        raise ConfigError(f"{OVERRIDE}: {unknown} is not supported; supported are {', '.join(NAMES)}")
    return content


def _defaults(content: Mapping[str, Any]) -> SamplingDefaults:
    """Return settings from fields of the file, which are null where they are open. `do_sample: false` is greedy."""
    given = {NAMES[name]: value for name, value in content.items() if value is not None}
    if given.pop("do_sample", True) is False:
        given["temperature"] = 0.0
    return SamplingDefaults(**given)
