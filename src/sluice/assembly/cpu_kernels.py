"""Which kernels compute on a CPU: the compiled ones at the processor's best level, or torch."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config import ConfigError
from sluice.native.library import NAMES, KernelsUnavailable, Library

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
