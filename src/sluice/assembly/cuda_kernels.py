"""What computes on a CUDA device: Triton's kernels where they run, torch where they do not, and nothing where torch has
no kernels for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

import torch

from sluice.config import ConfigError

OLDEST_FOR_TRITON = (8, 0)


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """What the choice depends on."""

    name: str
    capability: tuple[int, int]
    torch_archs: tuple[str, ...]
    """What torch was built for: sm_XY runs on capability X.Y and later ones of the same X; compute_XY is compiled on
    the spot for X.Y and all later ones."""
    has_triton: bool
    """Whether the package is installed."""

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """As torch sees it."""
        return cls(
            torch.cuda.get_device_name(device),
            torch.cuda.get_device_capability(device),
            tuple(torch.cuda.get_arch_list()),
            find_spec("triton") is not None,
        )


def check_device(device: CudaDevice) -> None:
    """
    Raises:
        ConfigError: torch cannot compute on it.
    """
    if any(_runs(arch, device.capability) for arch in device.torch_archs):
        return
    built_for = ", ".join(device.torch_archs) or "no CUDA device"
    raise ConfigError(
        f"{device.name} has compute capability {_dotted(device.capability)}, and torch {torch.__version__} was built"
        f" for {built_for}: install a torch that was built for it, or compute on"
        f" the processor with --device cpu"
    )


def why_no_triton(device: CudaDevice) -> str | None:
    """Why Triton's kernels cannot be used, or None if they can."""
    if device.capability < OLDEST_FOR_TRITON:
        return (
            f"Triton's kernels need compute capability {_dotted(OLDEST_FOR_TRITON)} or newer,"
            f" {device.name} has {_dotted(device.capability)}"
        )
    if not device.has_triton:
        return "the package triton is not installed (pip install 'sluice[gpu]')"
    return None


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code for `arch` runs; one with a letter behind, as sm_90a, on exactly that capability."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
    if found is None:
        return False
    kind, major, minor, is_special = found.groups()
    built = (int(major), int(minor))
    if is_special:
        return built == capability
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
