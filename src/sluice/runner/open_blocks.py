"""The open block of each slot, on the device: the tokens that it has so far, and which positions are masked.

A request of a model of block diffusion has one open block, behind all tokens that the host knows to be whole. Each pass
computes all of the block and gives some of its masked positions their tokens; when none is left, the block goes to the
host. Until then it is here, and a slot that is filled anew begins its block again.

All of it runs on the compute queue, so a pass reads what the pass before it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from sluice.models.spec import BlockDiffusion
from sluice.runner.last_tokens import STALE

OPEN = -3
"""Stands for the tokens of a block that still has masked positions."""


@dataclass(frozen=True, slots=True)
class Denoising:
    """How the blocks of a model are filled."""

    model: BlockDiffusion
    unmasking: Unmasking


class OpenBlocks:
    """One block a slot. As `LastTokens` it gives steps the input ids that are not on the host: entry
    `slot * block_size + column`.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device, denoising: Denoising) -> None:
        self.denoising = denoising
        shape = (num_slots, denoising.model.block_size)
        self._tokens = torch.full(shape, denoising.model.mask_token_id, dtype=torch.int64, device=device)
        self._is_masked = torch.ones(shape, dtype=torch.bool, device=device)
        self._passes = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def open(self, slots: torch.Tensor) -> None:
        """Return: the first pass of a block begins it."""

    def begin(self, slots: torch.Tensor, known: torch.Tensor) -> None:
        """Begin blocks whose first `known` [F] int64 positions have their tokens, in slots [F] int64."""
        columns = torch.arange(self._tokens.shape[1], device=slots.device)
        self._tokens.index_fill_(0, slots, self.denoising.model.mask_token_id)
        self._is_masked.index_copy_(0, slots, columns >= known[:, None])
        self._passes.index_fill_(0, slots, 0)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the input ids at entries [L] int64, [L] int64: the mask token where there is none yet."""
        return self._tokens.flatten().index_select(0, slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens: `unmask` keeps those that count."""
        return tokens

    def await_tokens(self, slots: torch.Tensor) -> None:
        """Return: blocks are denoised by one rank alone."""

    def unmask(self, slots: torch.Tensor, drawn: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
        """End a pass: give some masked positions their tokens.

        Args:
            slots: [R] int64.
            drawn: [R, block_size] int64, what was drawn at each masked position.
            confidence: [R, block_size], its probability.

        Returns:
            [R, block_size] int64, the tokens of the blocks that are whole now, `OPEN` in the others. Positions that
            were known at the block's beginning hold the mask token.
        """
        masked, tokens, passes = (part.index_select(0, slots) for part in (self._is_masked, self._tokens, self._passes))
        chosen = self.denoising.unmasking.choose(masked, confidence, passes)
        tokens = torch.where(chosen, drawn, tokens)
        masked &= ~chosen
        self._tokens.index_copy_(0, slots, tokens)
        self._is_masked.index_copy_(0, slots, masked)
        self._passes.index_copy_(0, slots, passes + 1)
        return tokens.masked_fill(masked.any(1, keepdim=True), OPEN)


class WatchedOpenBlocks(OpenBlocks):
    """Notices passes over blocks that are not open: that were not begun since their slot was filled, or are whole.

    The samples of such a pass get `STALE` in place of their tokens.

    Args:
        num_slots: slots.
        device: where steps run.
    """

    def __init__(self, num_slots: int, device: torch.device, denoising: Denoising) -> None:
        super().__init__(num_slots, device, denoising)
        self._is_open = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._was_stale = torch.zeros(num_slots, dtype=torch.bool, device=device)

    def open(self, slots: torch.Tensor) -> None:
        self._is_open.index_fill_(0, slots, 0)

    def begin(self, slots: torch.Tensor, known: torch.Tensor) -> None:
        super().begin(slots, known)
        self._is_open.index_fill_(0, slots, 1)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        owners = slots // self.denoising.model.block_size  # `slots` are entries here
        self._was_stale.index_copy_(0, owners, ~self._is_open.index_select(0, owners))
        return super().read(slots)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.masked_fill(self._was_stale.index_select(0, slots), STALE)

    def unmask(self, slots: torch.Tensor, drawn: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
        tokens = super().unmask(slots, drawn, confidence)
        self._is_open.index_copy_(0, slots, (tokens == OPEN).any(1))
        return tokens


class Strategy(StrEnum):
    """How positions are chosen. The values are those of `--dllm-algorithm`."""

    DYNAMIC = "LowConfidence"
    """All whose confidence is above the threshold, and at least as many as `STATIC` takes."""
    STATIC = "LowConfidenceStatic"
    """The most confident ones, the same number in each pass."""
    SEQUENTIAL = "Sequential"
    """The first ones, the same number in each pass."""


@dataclass(frozen=True, slots=True)
class Unmasking:
    """A strategy and its parameters."""

    strategy: Strategy
    threshold: float
    """Confidence, a probability, above which `DYNAMIC` takes a position."""
    steps: int
    """Most passes of a block, from 1 to its size."""

    def quota(self, passes: torch.Tensor, block_size: int) -> torch.Tensor:
        """Return how many positions a pass takes at least: the block's, shared evenly, the first passes one more.

        Args:
            passes: [R] passes that came before.
        """
        each, rest = divmod(block_size, self.steps)
        return each + (passes < rest).to(passes.dtype)

    def choose(self, masked: torch.Tensor, confidence: torch.Tensor, passes: torch.Tensor) -> torch.Tensor:
        """Return which positions get their token, at least one in each row that has a masked one.

        Args:
            masked: [R, block_size] bool.
            confidence: [R, block_size], the probability of the token drawn at each masked position.
            passes: [R] int64, passes that came before.

        Returns:
            [R, block_size] bool. Of equal confidences the first ones are taken.
        """
        columns = torch.arange(masked.shape[1], device=masked.device)
        value = -columns.to(confidence.dtype).expand_as(confidence)
        if self.strategy is not Strategy.SEQUENTIAL:
            value = confidence
        order = value.masked_fill(~masked, -torch.inf).sort(dim=1, descending=True, stable=True).indices
        rank = torch.empty_like(order).scatter_(1, order, columns.expand_as(order))
        chosen = rank < self.quota(passes, masked.shape[1])[:, None]
        if self.strategy is Strategy.DYNAMIC:
            chosen |= confidence > self.threshold
        return chosen & masked
