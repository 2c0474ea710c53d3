"""Random blocks of the types of GGUF files, with every special case of their scales."""

from __future__ import annotations

import numpy as np
import torch

from sluice.models.block_types import BLOCK_TYPES

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2)} | {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
"""Where float16 numbers lie in a block."""


def random_blocks(kind: str, rows: int, inputs: int, seed: int = 1, *, tame: bool = False) -> torch.Tensor:
    """Return rows of random bytes [rows, bytes] uint8, whose scales are finite: zero, subnormal and negative too.

    Args:
        tame: scales are alike, as those of a real weight.
    """
    block = BLOCK_TYPES[kind]
    count = rows * inputs // block.inputs
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (count, block.size), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = draw.uniform(-0.02, 0.02, count) if not tame else draw.uniform(0.01, 0.02, count)
        if not tame:
            scales[::7], scales[::11] = 0.0, 3e-7
        blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if kind == "MXFP4":
        blocks[:, 0] = draw.integers(118, 122, count)
        if not tame:
            blocks[::7, 0], blocks[::11, 0] = 0, 1
    return torch.from_numpy(blocks.reshape(rows, -1))
