"""Quantises weights to blocks of a GGUF type while they are loaded, for products as they are stored."""

from __future__ import annotations

import torch

from sluice.models.block_types import BLOCK_TYPES
from sluice.models.quantized import AT_ONCE, GROUP, LARGEST, Int4Weight
from sluice.models.stored_blocks import StoredBlocks


class EightBits:
    """Quantises weights to blocks of type Q8_0: 32 inputs with one scale, a number of float16."""

    @staticmethod
    def quantize(weight: torch.Tensor) -> StoredBlocks:
        """Quantise a weight [out_features, in_features] of a floating-point dtype, rounding to the nearest.

        Raises:
            ValueError: it holds a value that is infinite or no number, or that is too large for a scale in float16.
        """
        outputs, inputs = weight.shape
        blocks = torch.empty((outputs, inputs // GROUP * BLOCK_TYPES["Q8_0"].size), dtype=torch.uint8)
        rows = max(1, AT_ONCE // inputs)
        for part, to in zip(weight.split(rows), blocks.split(rows), strict=True):
            x = part.float().unflatten(1, (-1, GROUP))
            scales = (x.abs().amax(2, keepdim=True) / LARGEST).half()
            if not bool(scales.isfinite().all()):
                raise ValueError("it holds values that are infinite or no numbers, or above 8,000,000")
            numbers = (x / torch.where(scales == 0, 1.0, scales.float())).round_().clamp_(-LARGEST, LARGEST)
            to.copy_(torch.cat((scales.view(torch.uint8), numbers.to(torch.int8).view(torch.uint8)), 2).flatten(1))
        return StoredBlocks("Q8_0", blocks)


class FourBits:
    """Quantises weights to blocks of type Q4_0, with the numbers and the scales of `Int4Weight.quantize`."""

    @staticmethod
    def quantize(weight: torch.Tensor) -> StoredBlocks | Int4Weight:
        """Quantise a weight [out_features, in_features] of a floating-point dtype.

        Returns:
            Blocks, if float16 holds all scales exactly.

        Raises:
            ValueError: it holds a value that is infinite or no number.
        """
        made = Int4Weight.quantize(weight)
        return q4_0_blocks(made) or made


def q4_0_blocks(weight: Int4Weight) -> StoredBlocks | None:
    """Return a weight of four bits as blocks of type Q4_0; None if they cannot hold it exactly.

    They have no minimums, groups of 32 inputs, and scales in float16.
    """
    halves = weight.scales.half()
    if weight.minimums is not None or weight.group % GROUP or not torch.equal(halves.float(), weight.scales):
        return None
    scales = halves.repeat_interleave(weight.group // GROUP, 1)[..., None].view(torch.uint8)
    pairs = weight.values.unflatten(1, (-1, GROUP // 2))
    numbers = torch.stack((pairs & 15, pairs >> 4), -1).flatten(2)  # [out_features, groups, 32], in order
    halves_of_bytes = numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4
    return StoredBlocks("Q4_0", torch.cat((scales, halves_of_bytes), 2).flatten(1))
