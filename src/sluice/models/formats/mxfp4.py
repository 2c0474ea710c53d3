"""Experts in MXFP4, as gpt-oss is published: numbers of four bits (e2m1), 32 with one power of two (OCP Microscaling
Formats, 2023).

A tensor `*_blocks` [experts, outputs, groups, 16] holds two numbers in a byte, the first in the lower half, and
`*_scales` [experts, outputs, groups] the exponents plus 127. They become the blocks of GGUF files, of which the first
byte is the exponent, and whose lower halves are the first 16 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from sluice.models.base import CausalLM, Stack
from sluice.models.checkpoint import CheckpointError, Fields
from sluice.models.formats.base import Rows, WeightFormat
from sluice.models.spec import BLOCKS, holds
from sluice.models.stacked import check_experts
from sluice.models.stored_blocks import StoredBlocks
from sluice.models.weights import StoredTensor, stored_tensors

KIND = "MXFP4"
NUMBERS, EXPONENTS = "_blocks", "_scales"
HALF = 16
"""Bytes of 32 numbers, and half of these."""


class MXFP4(WeightFormat):
    """Experts in MXFP4, and all else in 16 bits."""

    name = "mxfp4"
    kinds = (BLOCKS,)

    @classmethod
    def read(cls, section: Fields) -> MXFP4:
        """Read `quantization_config`, which has nothing that matters but the method."""
        return cls()

    @property
    def description(self) -> str:
        return "experts in MXFP4"

    def tensors(self, folder: Path, model: CausalLM, dtype: torch.dtype, rows: Rows) -> Iterator[StoredTensor]:
        rules, halves = model.rules, dict[str, StoredTensor]()
        for tensor in stored_tensors(folder):
            name = rules.inner(tensor.name)
            stem = name.removesuffix(NUMBERS).removesuffix(EXPONENTS)
            stack = None if stem == name else rules.stack_of(stem)
            if stack is None:
                yield tensor
                continue
            halves[name] = tensor
            if stem + NUMBERS in halves and stem + EXPONENTS in halves:
                yield from _experts(halves.pop(stem + NUMBERS), halves.pop(stem + EXPONENTS), stack, stem, model, dtype)
        for name, tensor in halves.items():
            stem = name.removesuffix(NUMBERS).removesuffix(EXPONENTS)
            other = stem + (EXPONENTS if name == stem + NUMBERS else NUMBERS)
            raise CheckpointError(f"the checkpoint lacks the tensor {other} beside {tensor.name}")


def _experts(
    numbers: StoredTensor, exponents: StoredTensor, stack: Stack, stem: str, model: CausalLM, dtype: torch.dtype
) -> Iterator[StoredTensor]:
    """Iterate over the layers of all experts, as blocks or dequantised."""
    values, scales = numbers.value, exponents.value
    assert isinstance(values, torch.Tensor) and isinstance(scales, torch.Tensor), "safetensors hold tensors"
    is_right = values.dtype == scales.dtype == torch.uint8 and values.shape == (*scales.shape, HALF)
    if not is_right or scales.ndim != 3 or scales.shape[1] % len(stack.parts):
        raise CheckpointError(
            f"{numbers.file}: tensor {numbers.name} must be uint8 [experts, outputs, groups, {HALF}] and"
            f" {exponents.name} as it without the last, got {values.dtype} {list(values.shape)} and {scales.dtype}"
            f" {list(scales.shape)}"
        )
    count, parts = check_experts(numbers.file, numbers.name, len(values), model.spec), len(stack.parts)
    nbytes = (numbers.nbytes + exponents.nbytes) // (count * parts)
    for expert in range(count):
        for number, part in enumerate(stack.parts):
            own = slice(number, None, parts) if stack.interleaved else _run(scales.shape[1], parts, number)
            blocks = mxfp4_blocks(values[expert, own], scales[expert, own])
            value = blocks if holds(model.spec.quantization, BLOCKS) else blocks.dense(dtype)
            yield StoredTensor(stack.name(stem, expert, part), numbers.file, value, nbytes)


def _run(outputs: int, parts: int, number: int) -> slice:
    size = outputs // parts
    return slice(number * size, (number + 1) * size)


def mxfp4_blocks(numbers: torch.Tensor, exponents: torch.Tensor) -> StoredBlocks:
    """Return a matrix as blocks of GGUF.

    Args:
        numbers: [outputs, groups, 16] uint8
        exponents: [outputs, groups] uint8
    """
    ordered = torch.stack((numbers & 15, numbers >> 4), -1).flatten(2)
    packed = ordered[..., :HALF] | ordered[..., HALF:] << 4
    return StoredBlocks(KIND, torch.cat((exponents[..., None], packed), 2).flatten(1))
