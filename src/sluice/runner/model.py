"""What the runner needs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV


class Model(Protocol):
    """Computes steps; holds nothing of any request."""

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        """Write the step's KV and return hidden states [R, hidden_size] of the tokens at `batch.logit_rows`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] to [R, vocab]."""
        ...
