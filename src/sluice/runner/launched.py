"""A step on its way: what it sampled and scored travels to the host, and becomes a `BatchResult` there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sluice.device.queues import DoneEvent, Event, noop, wait_until
from sluice.device.transport import ToHost
from sluice.runner.features.base import BAD_LOGITS, StagedFeatures, StepReport
from sluice.runner.inputs import HostBatch
from sluice.runner.last_tokens import STALE
from sluice.types import BatchResult, RowError

STALE_TOKEN = (
    "the step read a token of this request that was not sampled yet, or a block that was not open: a bug of the runner,"
    " found by --debug-uninitialized-reads"
)
OtherRanksResult = Callable[[int], BatchResult | None]
"""Waits for the result of a step that other ranks sample. None: this rank is not to know it."""


class Outcome:
    """The outcome of a step. Its work on the device fills this in, and copies to the host replace it.

    Args:
        features: that the step uses; they keep their part of the outcome.
    """

    def __init__(self, features: StagedFeatures) -> None:
        self.features = features
        self.tokens: torch.Tensor | None = None
        """[S] int64"""
        self.slice_errors: tuple[RowError, ...] = ()
        """Offloaded work that failed."""
        self._on_device: torch.Tensor | None = None
        """Kept until the copy to the host is done."""

    def to_host(self, to_host: ToHost) -> None:
        """Begin to copy it to the host."""
        assert self.tokens is not None
        self._on_device = self.tokens
        self.tokens = to_host(self.tokens)
        self.features.to_host(to_host)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way."""

    step: int
    host: HostBatch
    outcome: Outcome
    arrived: Event
    """All of the outcome is on the host."""
    tick: Callable[[], None] = noop
    """Called every second while the host waits for the step."""

    def wait(self) -> BatchResult:
        """Block until the step is done.

        Returns:
            Its result, whose `errors` name the rows with bad logits, where they sample or before a target, and those
            with bad hidden states, where they embed.
        """
        if not isinstance(self.arrived, DoneEvent):
            wait_until(self.arrived.query, self.tick)
        outcome = self.outcome
        assert outcome.tokens is not None
        tokens, rows, drafts = outcome.tokens.tolist(), self.host.sample_rows.tolist(), self.host.drafts
        firsts = range(len(tokens)) if drafts is None else drafts.firsts.tolist()
        failed = {rows[at]: STALE_TOKEN if tokens[at] == STALE else BAD_LOGITS for at in firsts if tokens[at] < 0}
        report = StepReport(self.host, tokens, failed)
        outcome.features.report(report)
        return report.result(self.step, outcome.slice_errors)


@dataclass(frozen=True, slots=True)
class PassedStep:
    """A step on its way that other ranks sample."""

    step: int
    host: HostBatch
    outcome: Outcome
    arrived: Event
    """This rank's part is done."""
    elsewhere: OtherRanksResult
    tick: Callable[[], None] = noop

    def wait(self) -> BatchResult:
        """Block until the step is done. Return its result, or an empty one on a rank that is not to know it."""
        if not isinstance(self.arrived, DoneEvent):
            wait_until(self.arrived.query, self.tick)
        result = self.elsewhere(self.step)
        if result is None:
            return BatchResult(self.step, ())
        report = StepReport.of(self.host, result)
        self.outcome.features.complete(report)
        return report.result(self.step)
