"""Whether chunks are divided among steps, layer by layer, how long they may be, and the ITL target if none is given."""

from __future__ import annotations

from dataclasses import replace

from sluice.assembly.drafting import DraftSetup
from sluice.assembly.refusals import contradicted_by
from sluice.assembly.resolve import Resolution, with_target
from sluice.config import ConfigError, itl_micros
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder

OPTION = "--sliced-chunk-size"
DEFAULT_TARGET = "8x"
"""ITL target where none is given and chunks can be divided among steps. docs/itl-target.md says what it gives."""
SLICED_CHUNK = 2048
"""Tokens from which on a longer chunk computes hardly more of them in a second."""


def with_slices(resolved: Resolution, model: PagedLM, draft: DraftSetup | None, device_type: str) -> Resolution:
    """Return the options with the size of sliced chunks, and with the default ITL target where it makes such chunks.

    Args:
        resolved: all else.
        draft: the runner's own drafter, if there is one.

    Raises:
        ConfigError: chunks are to be sliced, and this model's cannot be.
    """
    asked, needed = resolved.config.scheduler.sliced_chunk_size, _needed(model, draft)
    if needed is None and asked is None and device_type == "cpu":
        resolved = _with_default_target(resolved, device_type)
    config = resolved.config
    if asked and needed is not None:
        raise ConfigError(f"{OPTION} {asked} needs {needed}")
    if asked is not None:
        return resolved
    contradicted = contradicted_by(config)
    size, why = 0, "off without --itl-target"
    if itl_micros(config.scheduler.itl_target):
        if contradicted or needed:
            why = f"off with {contradicted}" if contradicted else f"off: needs {needed}"
        elif config.parallel.pp_size > 1:
            why = f"off with --pp-size {config.parallel.pp_size}"
        elif "chunked_prefill_size" not in resolved.reasons:
            why = "off with --chunked-prefill-size"
        else:
            size, why = SLICED_CHUNK, "default with --itl-target"
    scheduler = replace(config.scheduler, sliced_chunk_size=size)
    return resolved.because(replace(config, scheduler=scheduler), sliced_chunk_size=why)


def _with_default_target(resolved: Resolution, device_type: str) -> Resolution:
    """Return the options with the default ITL target, unless there is one or what was asked for rules it out."""
    scheduler = resolved.config.scheduler
    asked = {"chunked_prefill_size", "max_batch_tokens"} - resolved.reasons.keys()
    rules_out = asked or scheduler.schedule != "mixed" or scheduler.schedule_policy == "deadline"
    if scheduler.itl_target is not None or scheduler.dynamic_chunking is not None or rules_out:
        return resolved
    if contradicted_by(resolved.config) is not None or resolved.config.parallel.pp_size > 1:
        return resolved
    return with_target(resolved, DEFAULT_TARGET, device_type, f"default on {device_type}")


def _needed(model: PagedLM, draft: DraftSetup | None) -> str | None:
    """Return what would be needed to slice a model's chunks; None: they can be sliced."""
    if not isinstance(model, Decoder):
        return "a native model"
    if model.spec.diffusion is not None:
        return "a model that generates token by token"
    return None if draft is None else "a drafter that reads tokens alone (--speculative-algorithm NGRAM)"
