"""Zeros that take no memory of a CPU before they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

ALIGNMENT = 64
"""Bytes, as torch aligns its own tensors."""


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros. The system commits those on a CPU page by page as they are written, which `torch.zeros` does at
    once."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return torch.from_numpy(memory[begin : begin + size]).view(dtype).view(tuple(shape))
