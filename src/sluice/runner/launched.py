"""A step on its way: what it sampled and scored travels to the host, and becomes a `BatchResult` there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from sluice.device.queues import DoneEvent, Event, noop, wait_until
from sluice.device.transport import ToHost
from sluice.runner.features.base import BAD_LOGITS, StagedFeatures, StepReport
from sluice.runner.inputs import HostBatch
from sluice.runner.last_tokens import STALE
from sluice.types import BatchResult, RowError

STALE_TOKEN = (
    "the step read a token of this request that was not sampled yet: a bug of the runner, found by"
    " --debug-uninitialized-reads"
)
Entry = TypeVar("Entry")


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
        tokens, rows = outcome.tokens.tolist(), self.host.sample_rows.tolist()
        failed = {
            row: STALE_TOKEN if token == STALE else BAD_LOGITS
            for row, token in zip(rows, tokens, strict=True)
            if token < 0
        }
        report = StepReport(self.host, tokens, failed)
        outcome.features.report(report)
        return BatchResult(
            self.step,
            tuple(
                () if row in failed else report.brought.get(index, (token,))
                for index, (row, token) in enumerate(zip(rows, tokens, strict=True))
            ),
            tuple(RowError(row, failed[row]) for row in sorted(failed)),
            _without_failed(report.logprobs, rows, failed),
            _without_failed(report.prompt_logprobs, [row for row, _ in self.host.target_rows], failed),
            tuple(
                b"" if row in failed else embedding
                for row, embedding in zip(self.host.embed_rows.tolist(), report.embeddings, strict=True)
            ),
            slice_errors=outcome.slice_errors,
            complete=tuple(report.complete),
        )


def _without_failed(
    entries: Sequence[tuple[Entry, ...]], rows: Sequence[int], failed: dict[int, str]
) -> tuple[tuple[Entry, ...], ...]:
    """Return the entries of rows, those of failed rows emptied; () if there are no entries."""
    if not entries:
        return ()
    return tuple(() if row in failed else entry for row, entry in zip(rows, entries, strict=True))
