"""How a step's forward is run: by calling the model, or by replaying what it did before (`graphs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from sluice.attention.base import AttentionBackend, ForwardBatch, PagedKV
from sluice.attention.planned import NO_PLANS, StepPlanner
from sluice.device.staging import Arrived
from sluice.runner.device_state import DeviceState
from sluice.runner.inputs import NUM_ARRAYS, HostBatch


class ForwardModel(Protocol):
    """What a forward needs of a model: see `runner.Model`."""

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: AttentionBackend) -> torch.Tensor: ...


class Forwards(Protocol):
    """Runs forwards."""

    def padded(self, host: HostBatch) -> HostBatch:
        """The step with the rows it is to be run with, its own first. Called on the host, at launch."""
        ...

    def run(self, laid: HostBatch, arrived: Arrived) -> torch.Tensor:
        """The hidden states [R or more, hidden_size] of the step's `logit_rows`, in order; on the compute stream.

        Args:
            laid: what `padded` returned.
            arrived: its arrays and others behind them, on the device.
        """
        ...


class EagerForwards:
    """Calls the model.

    Args:
        attention: what its layers call.
        planner: is told of every step before.
    """

    def __init__(
        self, model: ForwardModel, state: DeviceState, attention: AttentionBackend, planner: StepPlanner = NO_PLANS
    ) -> None:
        self._model = model
        self._state = state
        self._attention = attention
        self._planner = planner

    def padded(self, host: HostBatch) -> HostBatch:
        """See `Forwards.padded`."""
        return host

    def run(self, laid: HostBatch, arrived: Arrived) -> torch.Tensor:
        """See `Forwards.run`."""
        batch = self._state.forward_batch(laid, arrived.tensors[:NUM_ARRAYS])
        self._planner.plan(batch)
        return self._model.forward(batch, self._state.kv, self._attention)
