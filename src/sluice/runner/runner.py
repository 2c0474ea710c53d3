"""TorchRunner: plan -> tensors -> tokens.

    check   refuse a plan that does not fit, before anything changes
    apply   new slots and pages
    inputs  the plan as tensors (`inputs.py`)
    forward the model writes KV and gives logits of the rows that sample
    sample  one token a row, kept on the device as `last_token` for the next step, and copied to the host

On cuda all of it is queued on one stream and nothing waits: steps run in launch order, and only `wait` blocks, on
the copy of this step's tokens. On cpu the step is computed at launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sluice.attention.base import AttentionBackend, ForwardBatch, LayerKV
from sluice.runner.device import DeviceState
from sluice.runner.inputs import host_batch
from sluice.runner.sampler import FAILED, sample
from sluice.types import BatchPlan, BatchResult, RowError

BAD_LOGITS = "the model gave logits that are NaN, infinite or all -inf; the request cannot go on"


class Model(Protocol):
    """What the runner needs of a model."""

    def forward(self, batch: ForwardBatch, kv: Sequence[LayerKV], attention: AttentionBackend) -> torch.Tensor:
        """Write the step's KV and return logits [S, vocab] after the tokens at `batch.logit_rows`."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose tokens are on the host, or on their way there."""

    step: int
    rows: tuple[int, ...]
    """Rows of the plan that sample."""
    tokens: torch.Tensor
    """[S] int64 on the host"""
    copied: torch.cuda.Event | None
    """Set when `tokens` has arrived; None: it already has."""

    def wait(self) -> BatchResult:
        if self.copied is not None:
            self.copied.synchronize()
        tokens = self.tokens.tolist()
        return BatchResult(
            self.step,
            tuple(() if token == FAILED else (token,) for token in tokens),
            tuple(RowError(row, BAD_LOGITS) for row, token in zip(self.rows, tokens, strict=True) if token == FAILED),
        )


class TorchRunner:
    """Runs plans on one device.

    Args:
        model: on the state's device, in the state's dtype.
        state: emptied slots and KV; owned by the runner from now on.
        attention: the backend that every layer calls.
    """

    def __init__(self, model: Model, state: DeviceState, attention: AttentionBackend) -> None:
        self._model = model
        self._state = state
        self._attention = attention

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
        logits = self._model.forward(batch, state.kv, self._attention)
        tokens = sample(logits, sampling.rows, sampling.groups)
        state.remember(sampling.slots, tokens)
        on_host, copied = _to_host(tokens)
        return LaunchedStep(plan.step, tuple(host.sample_rows.tolist()), on_host, copied)


def _to_host(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Start bringing a tensor to the host."""
    if tokens.device.type == "cpu":
        return tokens, None
    landing = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    landing.copy_(tokens, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(tokens.device))
    return landing, copied
