"""Penalties for tokens that were there before (`SamplingParams` says how), as arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of P rows, each [P] float64."""

    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor

    def of(self, rows: slice) -> Penalties:
        return Penalties(self.repetition[rows], self.frequency[rows], self.presence[rows])


def penalized(
    logits: torch.Tensor, in_prompt: torch.Tensor, outputs: torch.Tensor, penalties: Penalties
) -> torch.Tensor:
    """Logits with penalties.

    Args:
        logits: [P, vocab] float32 or float64.
        in_prompt: [P, vocab] bool.
        outputs: [P, vocab] int32, how often each token was generated.
        penalties: of P rows.
    """
    repetition = penalties.repetition.to(logits.dtype)[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(in_prompt | (outputs > 0), repeated, logits)
    frequency, presence = (each.to(logits.dtype)[:, None] for each in (penalties.frequency, penalties.presence))
    return logits - frequency * outputs - presence * (outputs > 0)
