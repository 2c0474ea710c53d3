"""The block types of GGUF files, as weights in groups.

A row of a matrix is a sequence of blocks of 32 or 256 inputs. Fields are little-endian. The layouts are those of
`ggml-common.h` in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from sluice.models.group_weight import GroupWeight

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What four bits of IQ4_NL and IQ4_XS stand for."""
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What four bits of MXFP4 stand for: twice the numbers of e2m1."""
SIGNED_ZERO = 128
"""Added to numbers with a sign."""

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Numbers [N, inputs] uint8, scales [N, groups] float32, and minimums as the scales, or None."""


class BlockType(NamedTuple):
    """How one type stores a block."""

    id: int
    """In the file, and in `kernels/cpu/stored_blocks.h`."""
    size: int
    """Bytes of a block."""
    inputs: int
    """Of a block."""
    zero: int
    """The number that stands for zero."""
    unpack: Callable[[torch.Tensor], Parts]
    """From blocks [N, size] uint8."""


def group_weight(kind: str, blocks: torch.Tensor) -> GroupWeight:
    """Return rows of blocks [out_features, bytes] uint8 as a weight in groups.

    Args:
        kind: a key of `BLOCK_TYPES`.
    """
    block = BLOCK_TYPES[kind]
    numbers, scales, minimums = block.unpack(blocks.reshape(-1, block.size))
    rows = (each if each is None else each.reshape(len(blocks), -1) for each in (numbers, scales, minimums))
    first, second, third = rows
    assert first is not None and second is not None
    return GroupWeight(first, block.zero, second, third)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the float16 at a byte, [N, 1] float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(stored: torch.Tensor, size: int) -> torch.Tensor:
    """Return the numbers of runs of `size` bytes: first the lower halves of a run, then the upper ones."""
    runs = stored.unflatten(1, (-1, size))
    return torch.cat((runs & 15, runs >> 4), dim=2).flatten(1)


def _bits(stored: torch.Tensor) -> torch.Tensor:
    """Return the bits of bytes [N, size], the lowest first, as [N, 8 * size]."""
    return ((stored[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1)


def _planes(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the bits of bytes [N, size]: first the lowest ones of all bytes, and so on, as [N, 8 / bits * size]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return ((stored[:, None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def _q4_0(blocks: torch.Tensor) -> Parts:
    return _nibbles(blocks[:, 2:], 16), _half(blocks, 0), None


def _q4_1(blocks: torch.Tensor) -> Parts:
    return _nibbles(blocks[:, 4:], 16), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> Parts:
    return _nibbles(blocks[:, 6:], 16) | _bits(blocks[:, 2:6]) << 4, _half(blocks, 0), None


def _q5_1(blocks: torch.Tensor) -> Parts:
    return _nibbles(blocks[:, 8:], 16) | _bits(blocks[:, 4:8]) << 4, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Parts:
    return blocks[:, 2:] ^ SIGNED_ZERO, _half(blocks, 0), None


def _k_codes(stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of scales and minimums, of six bits each, that 12 bytes hold: [N, 8] float32."""
    first, second, third = stored.split(4, 1)
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), 1)
    minimums = torch.cat((second & 63, third >> 4 | second >> 6 << 4), 1)
    return scales.float(), minimums.float()


def _q4_k(blocks: torch.Tensor) -> Parts:
    scales, minimums = _k_codes(blocks[:, 4:16])
    return _nibbles(blocks[:, 16:], 32), _half(blocks, 0) * scales, -_half(blocks, 2) * minimums


def _q5_k(blocks: torch.Tensor) -> Parts:
    scales, minimums = _k_codes(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 48:], 32) | _planes(blocks[:, 16:48], 1) << 4
    return numbers, _half(blocks, 0) * scales, -_half(blocks, 2) * minimums


def _q6_k(blocks: torch.Tensor) -> Parts:
    high = torch.cat([_planes(half, 2) for half in blocks[:, 128:192].split(32, 1)], 1)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return _nibbles(blocks[:, :128], 64) | high << 4, _half(blocks, 208) * scales, None


def _looked_up(numbers: torch.Tensor, values: tuple[int, ...]) -> torch.Tensor:
    table = torch.tensor([value + SIGNED_ZERO for value in values], dtype=torch.uint8)
    return table[numbers.long()]


def _iq4_nl(blocks: torch.Tensor) -> Parts:
    return _looked_up(_nibbles(blocks[:, 2:], 16), IQ4_VALUES), _half(blocks, 0), None


def _iq4_xs(blocks: torch.Tensor) -> Parts:
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), 2).flatten(1)
    high = ((blocks[:, 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8)) & 3).flatten(1)
    scales = (low | high << 4).float() - 32
    return _looked_up(_nibbles(blocks[:, 8:], 16), IQ4_VALUES), _half(blocks, 0) * scales, None


def _mxfp4(blocks: torch.Tensor) -> Parts:
    scales = torch.exp2(blocks[:, :1].double() - 128).float()
    return _looked_up(_nibbles(blocks[:, 1:], 16), MXFP4_VALUES), scales, None


BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(2, 18, 32, 8, _q4_0),
    "Q4_1": BlockType(3, 20, 32, 0, _q4_1),
    "Q5_0": BlockType(6, 22, 32, 16, _q5_0),
    "Q5_1": BlockType(7, 24, 32, 0, _q5_1),
    "Q8_0": BlockType(8, 34, 32, SIGNED_ZERO, _q8_0),
    "Q4_K": BlockType(12, 144, 256, 0, _q4_k),
    "Q5_K": BlockType(13, 176, 256, 0, _q5_k),
    "Q6_K": BlockType(14, 210, 256, 32, _q6_k),
    "IQ4_NL": BlockType(20, 18, 32, SIGNED_ZERO, _iq4_nl),
    "IQ4_XS": BlockType(23, 136, 256, SIGNED_ZERO, _iq4_xs),
    "MXFP4": BlockType(39, 17, 32, SIGNED_ZERO, _mxfp4),
}
"""Types by their names in llama.cpp."""
