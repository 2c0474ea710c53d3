"""A model that never gives the ids behind those of its tokenizer, to which a padded vocabulary has rows, too.

Their rows were never trained. At a high temperature one is sampled now and then, and it has no text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.runner.forwards import Model


class KnownTokens:
    """Another model, with a probability of zero for the ids behind the first ones.

    Args:
        inner: the model that computes.
        count: ids that are known, counted from the first of its logits.
    """

    def __init__(self, inner: Model, count: int) -> None:
        self._inner = inner
        self._count = count

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        return self._inner.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._inner.logits(hidden)
        logits[:, self._count :] = -torch.inf
        return logits
