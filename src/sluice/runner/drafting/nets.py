"""What guesses tokens: a smaller language model, or a head on its target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.models.base import PagedLM
from sluice.models.families.eagle3 import Eagle3
from sluice.runner.forwards import Model


class DraftNet(Protocol):
    """Guesses tokens over paged KV of its own. It keeps nothing of any request."""

    state_size: int
    """Elements of the target's state that it reads before each token; 0: it reads tokens alone."""
    layers: Sequence[int]
    """Layers of the target of whose inputs that state is made, ascending."""

    def joined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the states [N, state_size] that are made of what enters `layers`, [N, hidden_size] each."""
        ...

    def forward(
        self, batch: ForwardBatch, states: torch.Tensor | None, kv: Sequence[PagedKV], attention: Attention
    ) -> torch.Tensor:
        """Write the KV of a step's tokens, and return hidden states [R, size] of those at `batch.logit_rows`.

        Args:
            states: [N, state_size], of the token before each; None if it reads none. The hidden states that it returns
                take the place of the target's where the target has not been yet.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, vocab] of hidden states [R, size], over the target's vocabulary."""
        ...


class DraftModel:
    """A language model as a drafter (Leviathan, Kalman and Matias, 2023).

    Args:
        model: of the target's vocabulary.
    """

    state_size = 0
    layers: Sequence[int] = ()

    def __init__(self, model: PagedLM) -> None:
        self._model: Model = model

    def joined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        raise AssertionError("a language model reads no states")

    def forward(
        self, batch: ForwardBatch, states: torch.Tensor | None, kv: Sequence[PagedKV], attention: Attention
    ) -> torch.Tensor:
        return self._model.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)


class Eagle3Net:
    """An EAGLE-3 head as a drafter."""

    def __init__(self, head: Eagle3) -> None:
        self._head = head
        self.state_size = head.config.layer.spec.hidden_size
        self.layers: Sequence[int] = head.config.target_layers

    def joined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._head.joined(states)

    def forward(
        self, batch: ForwardBatch, states: torch.Tensor | None, kv: Sequence[PagedKV], attention: Attention
    ) -> torch.Tensor:
        assert states is not None, "an EAGLE-3 head reads states"
        return self._head.forward(batch, states, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head.logits(hidden)
