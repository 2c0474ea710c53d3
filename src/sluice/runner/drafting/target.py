"""A target whose forward lets a drafter guess first, and keeps for it what it reads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.decoder import Decoder
from sluice.runner.drafting.drafter import RunnerDrafter
from sluice.runner.forwards import Model


class DraftedModel:
    """A model that checks what a drafter of tokens alone guesses.

    Args:
        inner: the model.
    """

    def __init__(self, inner: Model, drafter: RunnerDrafter) -> None:
        self._inner = inner
        self._drafter = drafter

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        self._drafter.guess(batch)
        return self._inner.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner.logits(hidden)


class StatesModel(DraftedModel):
    """A model that checks what a drafter guesses from its hidden states."""

    def __init__(self, inner: Decoder, drafter: RunnerDrafter) -> None:
        super().__init__(inner, drafter)
        self._states_of = inner.forward_with_states

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        self._drafter.guess(batch)
        hidden, states = self._states_of(batch, kv, attention, self._drafter.layers)
        self._drafter.keep(batch, states)
        return hidden
