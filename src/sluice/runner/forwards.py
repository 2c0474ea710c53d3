"""What the runner needs of a model, and how a forward is run: by calling the model, or by a replay (`graphs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.device.transport import Arrived
from sluice.runner.device_state import DeviceState
from sluice.runner.inputs import NUM_ARRAYS, HostBatch


class Model(Protocol):
    """Computes steps and keeps nothing of any request."""

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        """Write the step's KV and return hidden states [R, hidden_size] of the tokens at `batch.logit_rows`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [R, vocab] of hidden states [R, hidden_size]."""
        ...


class Forwards(Protocol):
    """Runs forwards."""

    def padded(self, host: HostBatch) -> HostBatch:
        """Return the step with the rows it is to be run with, its own first. Called on the host, at launch."""
        ...

    def run(self, laid: HostBatch, arrived: Arrived) -> torch.Tensor:
        """Return hidden states [R or more, hidden_size] of the step's `logit_rows`, in order.

        Called on the compute queue.

        Args:
            laid: what `padded` returned.
            arrived: its arrays, and others behind them, on the device.
        """
        ...


class EagerForwards:
    """Calls the model.

    Args:
        attention: what its layers call.
    """

    def __init__(self, model: Model, state: DeviceState, attention: Attention) -> None:
        self._model = model
        self._state = state
        self._attention = attention

    def padded(self, host: HostBatch) -> HostBatch:
        return host

    def run(self, laid: HostBatch, arrived: Arrived) -> torch.Tensor:
        batch = self._state.forward_batch(laid, arrived.tensors[:NUM_ARRAYS])
        self._attention.plan(batch)
        return self._model.forward(batch, self._state.kv, self._attention)
