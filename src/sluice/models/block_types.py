"""The block types of GGUF files, as weights in groups.

A row of a matrix is a sequence of blocks of 32 to 256 inputs. Fields are little-endian. The layouts are those of
`ggml-common.h` in llama.cpp, and the values those that llama.cpp computes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from sluice.models.block_fields import (
    MXFP4_VALUES,
    SIGNED_ZERO,
    Parts,
    fields,
    half,
    looked_up,
    nibbles,
    planes,
)
from sluice.models.group_weight import GroupWeight
from sluice.models.rare_blocks import RARE
from sluice.text.gguf.tensor_types import TYPES

Q4_0 = "Q4_0"
IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What four bits of IQ4_NL and IQ4_XS stand for."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How one type stores a block."""

    id: int
    """Number of the type in the file, and in `kernels/cpu/abi.h`."""
    size: int
    """Bytes of a block."""
    inputs: int
    """Inputs of a block."""
    zero: int
    """The number that stands for zero."""
    unpack: Callable[[torch.Tensor], Parts]
    """Unpacks blocks [N, size] uint8."""


def group_weight(kind: str, blocks: torch.Tensor) -> GroupWeight:
    """Return rows of blocks [out_features, bytes] uint8 as a weight in groups.

    Args:
        kind: a key of `BLOCK_TYPES`.
    """
    block, rows = BLOCK_TYPES[kind], len(blocks)
    numbers, scales, minimums = block.unpack(blocks.reshape(-1, block.size))
    return GroupWeight(
        numbers.reshape(rows, -1),
        block.zero,
        scales.reshape(rows, -1),
        None if minimums is None else minimums.reshape(rows, -1),
    )


def _q4_0(blocks: torch.Tensor) -> Parts:
    return nibbles(blocks[:, 2:], 16), half(blocks, 0), None


def _q4_1(blocks: torch.Tensor) -> Parts:
    return nibbles(blocks[:, 4:], 16), half(blocks, 0), half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> Parts:
    return nibbles(blocks[:, 6:], 16) | fields(blocks[:, 2:6], 1, 8) << 4, half(blocks, 0), None


def _q5_1(blocks: torch.Tensor) -> Parts:
    return nibbles(blocks[:, 8:], 16) | fields(blocks[:, 4:8], 1, 8) << 4, half(blocks, 0), half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Parts:
    return blocks[:, 2:] ^ SIGNED_ZERO, half(blocks, 0), None


def _q2_k(blocks: torch.Tensor) -> Parts:
    codes = blocks[:, :16]
    scales, minimums = half(blocks, 80) * (codes & 15).float(), -half(blocks, 82) * (codes >> 4).float()
    return planes(blocks[:, 16:80], 2), scales, minimums


def _q3_k(blocks: torch.Tensor) -> Parts:
    numbers = planes(blocks[:, 32:96], 2) | planes(blocks[:, :32], 1) << 2
    codes = blocks[:, 96:108]
    low = torch.cat((codes[:, :8] & 15, codes[:, :8] >> 4), 1)
    high = ((codes[:, None, 8:] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]) & 3).flatten(1)
    return numbers, half(blocks, 108) * ((low | high << 4).float() - 32), None


def _k_codes(stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of scales and minimums, of six bits each, that 12 bytes hold: [N, 8] float32."""
    first, second, third = stored.split(4, 1)
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), 1)
    minimums = torch.cat((second & 63, third >> 4 | second >> 6 << 4), 1)
    return scales.float(), minimums.float()


def _q4_k(blocks: torch.Tensor) -> Parts:
    scales, minimums = _k_codes(blocks[:, 4:16])
    return nibbles(blocks[:, 16:], 32), half(blocks, 0) * scales, -half(blocks, 2) * minimums


def _q5_k(blocks: torch.Tensor) -> Parts:
    scales, minimums = _k_codes(blocks[:, 4:16])
    numbers = nibbles(blocks[:, 48:], 32) | planes(blocks[:, 16:48], 1) << 4
    return numbers, half(blocks, 0) * scales, -half(blocks, 2) * minimums


def _q6_k(blocks: torch.Tensor) -> Parts:
    numbers = nibbles(blocks[:, :128], 64) | planes(blocks[:, 128:192], 2) << 4
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return numbers, half(blocks, 208) * scales, None


def _iq4_nl(blocks: torch.Tensor) -> Parts:
    return looked_up(nibbles(blocks[:, 2:], 16), IQ4_VALUES), half(blocks, 0), None


def _iq4_xs(blocks: torch.Tensor) -> Parts:
    low = nibbles(blocks[:, 4:8], 1)
    high = fields(blocks[:, 2:4], 2, 4)
    scales = (low | high << 4).float() - 32
    return looked_up(nibbles(blocks[:, 8:], 16), IQ4_VALUES), half(blocks, 0) * scales, None


def _mxfp4(blocks: torch.Tensor) -> Parts:
    """Scales are powers of two, 2 ** (e - 128), and subnormal numbers for e of 0 and 1."""
    exponents = blocks[:, :1].int()
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), exponents - 1 << 23)
    return looked_up(nibbles(blocks[:, 1:], 16), MXFP4_VALUES), bits.view(torch.float32), None


def _types(**of_names: tuple[int, Callable[[torch.Tensor], Parts]]) -> Mapping[str, BlockType]:
    """Return types by name, with their sizes in a file."""
    stored = {kind.name: (number, kind.block_bytes, kind.per_block) for number, kind in TYPES.items()}
    return {name: BlockType(*stored[name], zero, unpack) for name, (zero, unpack) in of_names.items()}


BLOCK_TYPES: Mapping[str, BlockType] = _types(
    Q4_0=(8, _q4_0),
    Q4_1=(0, _q4_1),
    Q5_0=(16, _q5_0),
    Q5_1=(0, _q5_1),
    Q8_0=(SIGNED_ZERO, _q8_0),
    Q2_K=(0, _q2_k),
    Q3_K=(4, _q3_k),
    Q4_K=(0, _q4_k),
    Q5_K=(0, _q5_k),
    Q6_K=(32, _q6_k),
    IQ4_NL=(SIGNED_ZERO, _iq4_nl),
    IQ4_XS=(SIGNED_ZERO, _iq4_xs),
    MXFP4=(SIGNED_ZERO, _mxfp4),
    **RARE,
)
"""Types that the compiled kernels multiply, by their names in llama.cpp."""
