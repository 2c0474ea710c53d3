"""Finds out how the weights of a checkpoint are quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.models.checkpoint import CheckpointConfig, CheckpointError, Fields
from sluice.models.formats.awq import AWQ
from sluice.models.formats.base import WeightFormat
from sluice.models.formats.compressed import CompressedTensors
from sluice.models.formats.fp8 import BlockFP8
from sluice.models.formats.gguf_weights import GGUF
from sluice.models.formats.gptq import GPTQ
from sluice.models.formats.mxfp4 import MXFP4
from sluice.models.spec import ON_LOAD

FORMATS: Mapping[str, Callable[[Fields], WeightFormat | None]] = {
    CompressedTensors.name: CompressedTensors.read,
    BlockFP8.name: BlockFP8.read,
    GPTQ.name: GPTQ.read,
    AWQ.name: AWQ.read,
    MXFP4.name: MXFP4.read,
    GGUF.name: GGUF.read,
}
"""Values of `quant_method` -> what reads the rest of `quantization_config`; None if it quantises no weights."""
BITSANDBYTES = "bitsandbytes"
BITS = ("load_in_8bit", "load_in_4bit")
"""Fields of bitsandbytes' section. If none is true, its weights are plain."""


def read_format(checkpoint: CheckpointConfig) -> WeightFormat | None:
    """Return how a checkpoint's weights are quantised; None if they are not.

    Raises:
        CheckpointError: in a way that is not supported, or the configuration is not valid.
    """
    section = checkpoint.fields.section("quantization_config")
    if section is None or _is_switched_off(section):
        return None
    method = section.text("quant_method")
    if method not in FORMATS:
        raise CheckpointError(
            f"{section.source}: quant_method {method!r} is not supported; accepted are {', '.join(FORMATS)}"
        )
    return FORMATS[method](section)


def _is_switched_off(section: Fields) -> bool:
    """Return whether a section says that nothing is quantised."""
    method = section.get("quant_method")
    if method is None:
        return "quant_method" in section
    return method == BITSANDBYTES and not any(section.flag(name, False) for name in BITS)


def check_agrees(asked: str | None, found: WeightFormat | None) -> None:
    """Check that a checkpoint is quantised as `--quantization` says.

    Any checkpoint can be quantised while it is loaded, and a GGUF file can be dequantised.

    Raises:
        CheckpointError: it is not.
    """
    if found is not None and found.name == GGUF.name and asked == "none":
        return
    if asked in (None, *ON_LOAD) or asked == ("none" if found is None else found.name):
        return
    has = "the checkpoint's weights are not quantised" if found is None else f"the checkpoint is {found.name}"
    raise CheckpointError(f"--quantization {asked}: {has}; leave the option out to serve it as it is")
