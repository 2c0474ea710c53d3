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
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "Q1_0", "Q2_0"), (0,)),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("MXFP4", "NVFP4", "IQ1_M"), ()),
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

    def scales() -> np.ndarray:
        found = draw.uniform(-0.02, 0.02, count) if not tame else draw.uniform(0.01, 0.02, count)
        if not tame:
            found[::7], found[::11] = 0.0, 3e-7
        return found.astype(np.float16)

    for at in HALVES[kind]:
        blocks[:, at : at + 2] = scales().view(np.uint8).reshape(-1, 2)
    if kind == "IQ1_M":  # four bits each in the upper halves of the bytes at 49, 51, 53 and 55
        quarters = scales().view(np.uint16)[:, None] >> np.arange(0, 16, 4) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | quarters << 4
    if kind == "NVFP4":
        blocks[:, :4] = draw.integers(16, 24, (count, 4)) if tame else draw.integers(0, 127, (count, 4))
    if kind == "MXFP4":
        blocks[:, 0] = draw.integers(118, 122, count)
        if not tame:
            blocks[::7, 0], blocks[::11, 0] = 0, 1
    return torch.from_numpy(blocks.reshape(rows, -1))
