"""The rarer block types of GGUF files: numbers from grids, ternary ones, and single bits.

IQ types store an index into a grid (`iq_grids.py`) for four or eight neighbouring numbers, and a bit for the sign of
each. Compiled kernels unpack these types anew for each product (`kernels/cpu/rare_blocks.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    words,
)
from sluice.models.iq_grids import grid

INPUTS = 256
"""Inputs of a block of most types."""
SIGNS = 8
"""Neighbouring numbers whose signs are stored together."""
GROUP = 32
"""Inputs with one scale, of types with one for a whole block."""
NO_SCALE = 0x7F
"""A scale of NVFP4 that stands for zero."""


def _iq2_xxs(blocks: torch.Tensor) -> Parts:
    pairs = blocks[:, 2:].unflatten(1, (-1, 8))
    signs, codes = _signs_and_scale(pairs[..., 4:].flatten(1))
    numbers = _with_signs(grid("IQ2_XXS")[pairs[..., :4].flatten(1).int()], signs)
    return numbers, half(blocks, 0) * (0.5 + codes) * 0.25, None


def _iq2_xs(blocks: torch.Tensor) -> Parts:
    stored = words(blocks[:, 2:66], 2)
    numbers = _with_signs(grid("IQ2_XS")[stored & 511], _with_even_parity(stored >> 9))
    return numbers, half(blocks, 0) * (0.5 + nibbles(blocks[:, 66:], 1)) * 0.25, None


def _iq2_s(blocks: torch.Tensor) -> Parts:
    indices = blocks[:, 2:34].int() | fields(blocks[:, 66:74], 2, 4).int() << 8
    numbers = _with_signs(grid("IQ2_S")[indices], blocks[:, 34:66])
    return numbers, half(blocks, 0) * (0.5 + nibbles(blocks[:, 74:], 1)) * 0.25, None


def _iq3_xxs(blocks: torch.Tensor) -> Parts:
    signs, codes = _signs_and_scale(blocks[:, 66:])
    numbers = _with_signs(grid("IQ3_XXS")[blocks[:, 2:66].int()], signs)
    return numbers, half(blocks, 0) * (0.5 + codes) * 0.5, None


def _iq3_s(blocks: torch.Tensor) -> Parts:
    indices = blocks[:, 2:66].int() | fields(blocks[:, 66:74], 1, 8).int() << 8
    numbers = _with_signs(grid("IQ3_S")[indices], blocks[:, 74:106])
    return numbers, half(blocks, 0) * (1.0 + 2 * nibbles(blocks[:, 106:], 1)), None


def _iq1_s(blocks: torch.Tensor) -> Parts:
    high = words(blocks[:, 34:], 2)
    indices = blocks[:, 2:34].int() | fields(high, 3, 4).int() << 8
    shifts = (high >> 15).repeat_interleave(GROUP // SIGNS, 1)
    return _shifted(grid("IQ1_S")[indices], shifts), half(blocks, 0) * (2 * (high >> 12 & 7) + 1) * 0.125, None


def _iq1_m(blocks: torch.Tensor) -> Parts:
    """The scale of the block lies in the upper four bits of the four words with the groups' scales."""
    high, scales = nibbles(blocks[:, 32:48], 1), words(blocks[:, 48:], 2)
    indices = blocks[:, :32].int() | (high & 7).int() << 8
    quarters = (scales >> 12).byte()
    unit = half(quarters[:, 0::2] | quarters[:, 1::2] << 4, 0)
    return _shifted(grid("IQ1_S")[indices], high >> 3), unit * (2 * fields(scales, 3, 4) + 1) * 0.125, None


def _tq1_0(blocks: torch.Tensor) -> Parts:
    runs = (_digits(blocks[:, :32], 5), _digits(blocks[:, 32:48], 5), _digits(blocks[:, 48:52], 4))
    return torch.cat(runs, 1), half(blocks, 52).expand(-1, INPUTS // GROUP), None


def _tq2_0(blocks: torch.Tensor) -> Parts:
    return planes(blocks[:, :64], 2), half(blocks, 64).expand(-1, INPUTS // GROUP), None


def _q1_0(blocks: torch.Tensor) -> Parts:
    return fields(blocks[:, 2:], 1, 8) << 1, half(blocks, 0).expand(-1, 128 // GROUP), None


def _q2_0(blocks: torch.Tensor) -> Parts:
    return fields(blocks[:, 2:], 2, 4), half(blocks, 0).expand(-1, 64 // GROUP), None


def _nvfp4(blocks: torch.Tensor) -> Parts:
    """Scales are e4m3 without a sign, halved because the numbers are doubled."""
    stored = blocks[:, :4].int()
    exponents = stored >> 3 & 15
    whole = (stored & 7 | (exponents > 0).int() << 3) << (exponents - 1).clamp(min=0)
    scales = torch.where(stored == NO_SCALE, 0.0, whole.float() * 2.0**-10)
    return looked_up(nibbles(blocks[:, 4:], 8), MXFP4_VALUES), scales, None


def _signs_and_scale(stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the signs [N, 4 * words] and codes of scales [N, words] that words of 32 bits hold: seven bits for eight
    signs, four times, and above them four bits."""
    found = words(stored, 4)
    return _with_even_parity(fields(found, 7, 4)), found >> 28


def _with_even_parity(seven: torch.Tensor) -> torch.Tensor:
    """Return bits with an eighth one that makes the number of those that are set even."""
    odd = seven ^ seven >> 4
    odd = odd ^ odd >> 2
    return seven | ((odd ^ odd >> 1) & 1) << 7


def _with_signs(magnitudes: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return numbers [N, inputs] uint8 around `SIGNED_ZERO`.

    Args:
        magnitudes: [N, indices, 4 or 8] uint8.
        signs: [N, inputs / 8], of each the lowest bit for the first number: set if it is negative.
    """
    are_negative = fields(signs, 1, SIGNS).bool()
    numbers = magnitudes.flatten(1)
    return torch.where(are_negative, SIGNED_ZERO - numbers, SIGNED_ZERO + numbers)


def _shifted(numbers: torch.Tensor, are_lower: torch.Tensor) -> torch.Tensor:
    """Return eight times the numbers -1, 0 and 1, stored as 0, 1 and 2 [N, indices, 8] uint8, and one more or less.

    The shift is an eighth. `SIGNED_ZERO` stands for zero.
    """
    return (8 * numbers + (SIGNED_ZERO - 8 + 1 - 2 * are_lower.byte()[..., None])).flatten(1)


def _digits(stored: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ternary digits of bytes [N, size], which are fractions: the first digits of all bytes first."""
    powers = torch.tensor([3**digit for digit in range(count)], dtype=torch.uint8)[:, None]
    return ((stored[:, None] * powers).int() * 3 >> 8).byte().flatten(1)


RARE: Mapping[str, tuple[int, Callable[[torch.Tensor], Parts]]] = {
    "IQ2_XXS": (SIGNED_ZERO, _iq2_xxs),
    "IQ2_XS": (SIGNED_ZERO, _iq2_xs),
    "IQ2_S": (SIGNED_ZERO, _iq2_s),
    "IQ3_XXS": (SIGNED_ZERO, _iq3_xxs),
    "IQ3_S": (SIGNED_ZERO, _iq3_s),
    "IQ1_S": (SIGNED_ZERO, _iq1_s),
    "IQ1_M": (SIGNED_ZERO, _iq1_m),
    "TQ1_0": (1, _tq1_0),
    "TQ2_0": (1, _tq2_0),
    "Q1_0": (1, _q1_0),
    "Q2_0": (1, _q2_0),
    "NVFP4": (SIGNED_ZERO, _nvfp4),
}
"""By their names: the number that stands for zero, and what unpacks blocks."""
