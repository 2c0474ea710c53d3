"""Denoising: what is drawn at the masked positions of open blocks, and when a block is whole.

In a step, each masked position of a block is a sample. Its token is drawn as any other: from its logits, with the
request's parameters and the noise of its position. `Unmasking` then says which of these tokens count; the other
positions stay masked and are drawn again in the next pass, when their logits are surer. The confidence of a token is
its probability by the raw logits, before temperature and filters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sluice.runner.features.base import Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.features.logprobs import score_rows
from sluice.runner.host_blocks import HostBlocks
from sluice.runner.inputs import HostBatch
from sluice.runner.open_blocks import OPEN, OpenBlocks
from sluice.types import NewSlot


class StagedMask(StagedFeature):
    """Begins the blocks that a step opens, and keeps the mask token from being drawn."""

    keeps_raw = True

    def __init__(self, blocks: OpenBlocks, host: HostBlocks) -> None:
        self._blocks = blocks
        self.arrays = (host.slots[host.is_opened], host.known[host.is_opened])

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self._blocks.begin(*tensors)

    def apply(self, logits: StepLogits) -> None:
        logits.maskable()[:, self._blocks.denoising.model.mask_token_id] = -torch.inf


class MaskTokens(Feature):
    """Applied before the sampling; see `Denoise`."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks

    def fill(self, new: NewSlot) -> None:
        """Return: all requests are denoised alike."""

    def stage(self, host: HostBatch) -> StagedMask | None:
        return None if host.blocks is None else StagedMask(self._blocks, host.blocks)


class StagedDenoise(StagedFeature):
    """Ends a pass over the open blocks of a step."""

    keeps_raw = True

    def __init__(self, blocks: OpenBlocks, host: HostBlocks) -> None:
        self._blocks = blocks
        self._host = host
        every_sample = np.arange(len(host.columns))
        self.arrays = (host.slots, host.rows, host.columns, every_sample)

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self._slots, self._rows, self._columns, self._every_sample = tensors

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        scores = score_rows(logits.raw, logits.tokens, self._every_sample, 0, logits.slice_bytes, logits.ops)
        certain = scores.logprobs.exp()
        shape = len(self._slots), self._blocks.denoising.model.block_size
        at = self._rows, self._columns
        confidence = certain.new_zeros(shape).index_put_(at, certain)
        drawn = logits.tokens.new_zeros(shape).index_put_(at, logits.tokens.clamp(min=0))
        return (self._blocks.unmask(self._slots, drawn, confidence),)

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        firsts, known = self._host.firsts.tolist(), self._host.known.tolist()
        for first, count, tokens in zip(firsts, known, tensors[0].tolist(), strict=True):
            outcome.others[first] = () if OPEN in tokens else tuple(tokens[count:])


class Denoise(Feature):
    """Applied after the sampling; see `MaskTokens`."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks

    def fill(self, new: NewSlot) -> None:
        """Return: all requests are denoised alike."""

    def stage(self, host: HostBatch) -> StagedDenoise | None:
        return None if host.blocks is None else StagedDenoise(self._blocks, host.blocks)
