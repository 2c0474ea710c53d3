"""Which masked positions of a block get their token in a pass of denoising.

The strategies are those of SDAR (Cheng et al., 2025): the positions whose tokens are most certain, a fixed number in
each pass or all above a threshold (Wu et al., "Fast-dLLM", 2025), or simply the first ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch


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
