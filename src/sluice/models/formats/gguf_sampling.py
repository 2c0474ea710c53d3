"""The sampling settings of a GGUF file (`general.sampling.*`), as a `generation_config.json`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sluice.models.checkpoint import Fields

LOGGER = logging.getLogger("sluice.models")
PREFIX = "general.sampling."
NAMES: Mapping[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Names of settings -> those in `generation_config.json`."""
WITHOUT_LIMIT = "top_k"
"""A number below 1 means that there is none."""


def generation_config(metadata: Fields) -> dict[str, float]:
    """Return the settings of a file that are used. The others are named in the log.

    Raises:
        CheckpointError: a setting is no number.
    """
    found: dict[str, float] = {}
    for key in metadata:
        if not key.startswith(PREFIX):
            continue
        name, value = key.removeprefix(PREFIX), metadata.get(key)
        if name not in NAMES:
            LOGGER.warning("%s: %s = %r is not used", metadata.source, key, value)
        elif not isinstance(value, int | float) or isinstance(value, bool):
            raise metadata.error(key, "a number")
        elif name != WITHOUT_LIMIT or value >= 1:
            found[NAMES[name]] = value
    return found
