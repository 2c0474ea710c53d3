"""Block sizes of the kernels, by head size, element size and architecture.

Shared memory decides: a program may hold 163 KiB on SM80 (A100), 99 KiB on SM86, SM89 and SM120, 227 KiB on SM90 and
SM100. Every stage of the pipeline holds a tile of keys and one of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

QUERY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_HEAD_DIM = 256
OLDEST = (8, 0)
LARGE_SHARED = frozenset({(8, 0), (8, 7), (9, 0), (10, 0), (10, 3)})
"""Compute capabilities with 163 KiB of shared memory for a program, or more."""


@dataclass(frozen=True, slots=True)
class Arch:
    """The properties of a device that determine block sizes."""

    capability: tuple[int, int]
    num_sms: int

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Return those of a CUDA device; in the interpreter those of a small device of the oldest kind.

        Raises:
            ValueError: the device is too old, or no CUDA device while Triton compiles.
        """
        if device.type != "cuda":
            import triton

            if not triton.knobs.runtime.interpret:
                raise ValueError(
                    f"Triton attention needs a CUDA device, got {device}: use the reference or cpu kernels"
                )
            return cls(OLDEST, 4)
        properties = torch.cuda.get_device_properties(device)
        capability = (properties.major, properties.minor)
        if capability < OLDEST:
            raise ValueError(
                f"Triton attention needs compute capability 8.0 or newer, {properties.name} has "
                f"{properties.major}.{properties.minor}: use the reference attention"
            )
        return cls(capability, properties.multi_processor_count)

    @property
    def has_wgmma(self) -> bool:
        """Whether groups of four warps multiply together. Such devices also have 227 KiB of shared memory."""
        return self.capability[0] in (9, 10)

    @property
    def has_large_shared(self) -> bool:
        return self.capability in LARGE_SHARED

    @property
    def has_fp8(self) -> bool:
        """Whether Triton has float8_e4m3fn on it."""
        return self.capability >= (8, 9)


@dataclass(frozen=True, slots=True)
class ExtendTiles:
    block: int
    """Rows of a block, each a query token and one of its group's heads; a power of two, at least 16."""
    tile: int
    """Keys at a time; a power of two, at least 16."""
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    tile: int
    """Keys at a time; a power of two, at least 16."""
    min_tiles: int
    """Least tiles of a piece of a row's keys: the reduction of smaller pieces would cost too much."""
    programs_per_sm: int
    """Pieces times KV heads to aim at, for each multiprocessor."""
    num_warps: int
    num_stages: int


def extend_tiles(arch: Arch, head_pad: int, element_size: int) -> ExtendTiles:
    """Return sizes that fit into registers, as `scripts/triton_resources.py` shows.

    Args:
        head_pad: head size as a power of two.
        element_size: bytes of an element of the queries.
    """
    if element_size > 2:
        return ExtendTiles(32, 16, num_warps=4, num_stages=1)
    if head_pad > 128:
        return ExtendTiles(128 if arch.has_wgmma else 64, 32, num_warps=8, num_stages=3 if arch.has_large_shared else 2)
    if arch.has_wgmma:
        return ExtendTiles(128, 64, num_warps=8, num_stages=3)
    if arch.has_large_shared:
        return ExtendTiles(128, 64 if head_pad <= 64 else 32, num_warps=8, num_stages=3)
    return ExtendTiles(64, 32, num_warps=4, num_stages=3)


def decode_tiles(arch: Arch, head_pad: int, element_size: int) -> DecodeTiles:
    """Return sizes with which two tiles load while one is computed, and at least two programs fit.

    Args:
        head_pad, element_size: as `extend_tiles`.
    """
    room = (64 if arch.has_large_shared else 32) * 1024
    tile = min(64, max(16, room // (4 * head_pad * element_size)))
    return DecodeTiles(tile, min_tiles=2, programs_per_sm=4, num_warps=4, num_stages=3)
