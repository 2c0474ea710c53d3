"""The compiled kernels for tests: every supported level, including emulated tiles."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.kernels.cpu.library import Kernels, KernelsUnavailable, Level, Library

TILES = (Level.AMX, Level.SCALAR_TILES, Level.AVX512_TILES)
"""Levels that sum in another order when there are enough rows for a tile."""


def library() -> Library:
    """Load the library, or skip the module if there is none."""
    try:
        return Library()
    except KernelsUnavailable as error:
        pytest.skip(f"no compiled kernels: {error}", allow_module_level=True)


def all_kernels(threads: int = 2) -> Sequence[Kernels]:
    """Return the kernels of each level."""
    compiled = library()
    return [Kernels(compiled, level, threads) for level in compiled.levels()]


def level_name(kernels: Kernels) -> str:
    return kernels.level.name.lower()
