"""The dtype of a model that torch computes on a CPU, without compiled kernels.

Where oneDNN does not multiply bfloat16 (before AVX-512), torch's own products of 16-bit numbers take four to seven
times as long as those of float32.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path

import torch

from sluice.assembly.devices import TORCH
from sluice.assembly.ranks import layout_of
from sluice.assembly.resolve import Resolution
from sluice.device.machine import free_memory
from sluice.models.checkpoint import read_config
from sluice.models.formats.gguf_open import open_gguf
from sluice.models.packers import has_onednn_bfloat16
from sluice.models.weights import GGUF, first_floating_dtype, opened_weights, weight_files

LOGGER = logging.getLogger("sluice.engine")
SHARE = 0.5
"""Share of the free memory that weights in float32 may take: KV and steps need memory, too."""
NUMBER_BYTES = 4
NUMBERS_PER_BYTE = 2
"""Most weights in a byte of a quantised checkpoint, but for rare ones."""
WHY = "torch multiplies 16-bit numbers slowly on this processor"


def with_fast_dtype(here: Resolution, folder: Path, device: torch.device) -> Resolution:
    """Return options with `--dtype float32` in place of auto, where that is faster and fits into the memory.

    Several ranks keep what the checkpoint says: each sees another amount of free memory, and all need one dtype.

    Args:
        here: the options as this machine resolves them.
        folder: of the checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """
    model = here.config.model
    is_slow = device.type == "cpu" and model.cpu_kernels == TORCH and not has_onednn_bfloat16()
    is_alone = layout_of(here.config.parallel).size == 1
    if not (is_slow and is_alone and model.dtype == "auto" and _has_16_bits(folder)):
        return here
    needed, free = _float32_bytes(folder), free_memory(device)
    if needed > SHARE * free:
        fits = f"in float32 its weights would take {needed / 1e9:.1f} GB, of {free / 1e9:.1f} GB that are free"
        LOGGER.warning("%s, but %s: it is computed in 16 bits", WHY, fits)
        return here.because(dtype=f"auto: what the checkpoint says; {fits}")
    LOGGER.info("the model is computed in float32: %s (--dtype bfloat16 takes half of the memory)", WHY)
    config = replace(here.config, model=replace(model, dtype="float32"))
    return here.because(config, dtype=f"auto: {WHY}")


def _has_16_bits(folder: Path) -> bool:
    """Return whether a checkpoint is computed in 16 bits unless the options say otherwise."""
    return (read_config(folder).dtype or first_floating_dtype(folder)) in ("bfloat16", "float16")


def _float32_bytes(folder: Path) -> int:
    """Return the bytes of a checkpoint's weights in float32; of quantised ones in safetensors, as many at most."""
    if (folder / GGUF).exists():
        tensors = open_gguf((folder / GGUF).resolve()).tensors.values()
        return NUMBER_BYTES * sum(info.numel for info in tensors)
    if read_config(folder).fields.section("quantization_config") is not None:
        return NUMBER_BYTES * NUMBERS_PER_BYTE * sum(file.stat().st_size for file in weight_files(folder))
    with opened_weights(folder) as files:
        return NUMBER_BYTES * sum(math.prod(file.shape(name)) for file in files for name in file.names)
