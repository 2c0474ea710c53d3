"""TorchRunner: plan -> tensors -> tokens.

    check   refuse a plan that does not fit, before anything changes
    apply   new slots and pages
    inputs  the plan as tensors (`inputs.py`)
    forward the model writes KV and gives hidden states of the rows that sample and of those before a target
    adjust  bias, penalties, minimum length, where asked for (`adjust.py`)
    sample  one token a row, kept on the device as `last_token` for the next step
    score   log-probabilities, where asked for (`logprobs.py`)
    land    what was sampled and scored is copied to the host (`launched.py`)

On cuda all of it is queued on one stream and nothing waits: steps run in launch order, and only `wait` blocks, on
the copy of this step's tokens. On cpu the step is computed at launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from sluice.attention.base import AttentionBackend, ForwardBatch, PagedKV
from sluice.runner.device import DeviceState
from sluice.runner.inputs import host_batch
from sluice.runner.launched import LaunchedStep
from sluice.runner.logprobs import SLICE_BYTES, score_samples, score_targets
from sluice.runner.sampler import sample
from sluice.runner.waiting import nobody
from sluice.types import BatchPlan


class Model(Protocol):
    """What the runner needs of a model."""

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: AttentionBackend) -> torch.Tensor:
        """Write the step's KV and return hidden states [R, hidden_size] of the tokens at `batch.logit_rows`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] to [R, vocab]."""
        ...


class TorchRunner:
    """Runs plans on one device.

    Args:
        model: on the state's device, in the state's dtype.
        state: emptied slots and KV; owned by the runner from now on.
        attention: the backend that every layer calls.
        slice_bytes: most memory that the logits of prompt tokens take at once (a row at least), when their
            log-probabilities are asked for.
        tick: called every second while a step is waited for.
    """

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        attention: AttentionBackend,
        *,
        slice_bytes: int = SLICE_BYTES,
        tick: Callable[[], None] = nobody,
    ) -> None:
        self._model = model
        self._state = state
        self._attention = attention
        self._slice_bytes = slice_bytes
        self._tick = tick

    @torch.inference_mode()
    def launch(self, plan: BatchPlan) -> LaunchedStep:
        """Start a step.

        Raises:
            PlanError: the plan does not fit the device's state, which is unchanged.
        """
        state = self._state
        state.check(plan)
        state.apply(plan)
        host = host_batch(plan, state.page_table.host, state.shape.page_size)
        batch = state.forward_batch(host)
        sampling = state.sampling.step(host.sample_slots, host.sample_positions, state.shape.device)
        adjustments = state.adjustments.step(host.sample_slots, host.sample_positions)
        wishes = state.wishes.step(host)
        hidden = self._model.forward(batch, state.kv, self._attention)
        of_samples, of_targets = hidden.tensor_split([len(host.sample_rows)])
        logits = self._model.logits(of_samples)
        wanted = logits if adjustments is None else adjustments.apply(logits)
        tokens = sample(wanted, sampling.rows, sampling.groups)
        state.remember(sampling.slots, tokens)
        if adjustments is not None:
            adjustments.sampled(tokens)
        return LaunchedStep.landing(
            plan.step,
            host,
            wishes,
            tokens,
            score_samples(logits, tokens, wishes.samples, self._slice_bytes),
            score_targets(self._model.logits, of_targets, host, wishes.targets, self._slice_bytes),
            self._tick,
        )
