"""Which kernels compute on a CPU: the compiled ones at the processor's best level, or torch."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.attention.packed import GROUP, STEPS
from sluice.config import ConfigError
from sluice.models.spec import ModelSpec
from sluice.native.library import MAX_HEAD_DIM, NAMES, KernelsUnavailable, Library

TORCH = "torch"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """What `--cpu-kernels` came to."""

    name: str
    """A key of `NAMES`, or "torch"."""
    reason: str | None
    """Why, if nobody asked for it."""


def choose_kernels(asked: str, device_type: str) -> KernelChoice:
    """
    Args:
        asked: a key of `NAMES`, "torch" or "auto".
        device_type: "cpu" or "cuda".

    Raises:
        ConfigError: a level was asked for that this machine, or this installation, does not have.
    """
    if asked == TORCH:
        return KernelChoice(TORCH, None)
    if device_type != "cpu":
        if asked != "auto":
            raise ConfigError(f"--cpu-kernels {asked} needs --device cpu, got {device_type}")
        return KernelChoice(TORCH, f"the device is {device_type}")
    try:
        library = Library()
        level = library.best() if asked == "auto" else NAMES[asked]
    except KernelsUnavailable as error:
        if asked == "auto":
            return KernelChoice(TORCH, f"no compiled kernels: {error}")
        raise ConfigError(f"--cpu-kernels {asked} cannot be had: {error}") from error
    if not library.has(level):
        able = [name for name, known in NAMES.items() if library.has(known)]
        raise ConfigError(f"--cpu-kernels {asked}: this processor lacks it; it has {', '.join(able)}")
    if asked != "auto":
        return KernelChoice(asked, None)
    name = next(name for name, known in NAMES.items() if known == level)
    return KernelChoice(name, "the best that this processor has")


def unsuited(spec: ModelSpec, page_size: int) -> str | None:
    """Why the compiled kernels cannot attend for a model, or None if they can."""
    if spec.dtype not in STEPS:
        names = " and ".join(str(dtype).removeprefix("torch.") for dtype in STEPS)
        return f"they take {names}, the model is {str(spec.dtype).removeprefix('torch.')}"
    if spec.head_dim % GROUP or spec.head_dim > MAX_HEAD_DIM:
        return f"they take heads of a multiple of {GROUP} up to {MAX_HEAD_DIM}, the model's have {spec.head_dim}"
    if page_size % GROUP:
        return f"they take pages of a multiple of {GROUP} tokens, --page-size is {page_size}"
    return None
