"""A step on its way: what was sampled and scored travels to the host, and becomes a `BatchResult` there."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from sluice.device.queues import DoneEvent, Event, noop, wait_until
from sluice.device.transport import ToHost
from sluice.runner.inputs import HostBatch
from sluice.runner.last_tokens import STALE
from sluice.runner.logprobs import NOTHING, Scores, StepWishes
from sluice.types import BatchResult, RowError, TokenLogprobs

BAD_LOGITS = "the model gave logits that are NaN, infinite or all -inf; the request cannot go on"
STALE_TOKEN = (
    "the step read a token of this request that was not sampled yet: a bug of the runner, found by"
    " --debug-uninitialized-reads"
)


class Outcome:
    """What a step gives, filled in by its work on the device: first there, then on the host."""

    def __init__(self) -> None:
        self.tokens: torch.Tensor | None = None
        """[S] int64"""
        self.of_samples: Scores | None = None
        """Of the samples asked for."""
        self.of_targets: Scores | None = None
        """Of all targets."""
        self.slice_errors: tuple[RowError, ...] = ()
        """Offloaded work that failed."""
        self.unfinished = 0
        """Units of it that are not done."""
        self._on_device: list[object] = []

    def land(self, to_host: ToHost) -> None:
        """Bring it to the host. What is copied stays alive until nobody waits for the copy any more."""
        assert self.tokens is not None
        self._on_device = [self.tokens, self.of_samples, self.of_targets]
        self.tokens = to_host(self.tokens)
        self.of_samples = _landed(self.of_samples, to_host)
        self.of_targets = _landed(self.of_targets, to_host)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way."""

    step: int
    host: HostBatch
    wishes: StepWishes
    outcome: Outcome
    landed: Event
    """All of the outcome is on the host."""
    tick: Callable[[], None] = noop
    """Called every second while it is waited for."""

    def wait(self) -> BatchResult:
        """See `Pending.wait`. A row with bad logits, where it samples or before a target, is named in `errors`."""
        if not isinstance(self.landed, DoneEvent):
            wait_until(self.landed.query, self.tick)
        outcome = self.outcome
        assert outcome.tokens is not None
        sampled = outcome.tokens.tolist()
        samples = list(zip(self.host.sample_rows.tolist(), sampled, strict=True))
        prompts = [] if outcome.of_targets is None else list(self._prompt_logprobs(outcome.of_targets))
        rows = [row for row, _ in self.host.target_rows]
        failed = {row: STALE_TOKEN if token == STALE else BAD_LOGITS for row, token in samples if token < 0}
        for row, told in zip(rows, prompts, strict=True):
            if any(math.isnan(item.logprob) for item in told):
                failed.setdefault(row, BAD_LOGITS)
        return BatchResult(
            self.step,
            tuple(() if row in failed else (token,) for row, token in samples),
            tuple(RowError(row, failed[row]) for row in sorted(failed)),
            () if outcome.of_samples is None else tuple(self._logprobs(outcome.of_samples, sampled, failed)),
            tuple(() if row in failed else told for row, told in zip(rows, prompts, strict=True)),
            slice_errors=outcome.slice_errors,
            unfinished=outcome.unfinished,
        )

    def _logprobs(
        self, scores: Scores, sampled: list[int], failed: Container[int]
    ) -> Iterator[tuple[TokenLogprobs, ...]]:
        told = _rows(scores)
        wishes = self.wishes.samples.tolist()
        for row, token, wish in zip(self.host.sample_rows.tolist(), sampled, wishes, strict=True):
            if wish == NOTHING:
                yield ()
                continue
            logprob, top = next(told)
            yield () if row in failed else (TokenLogprobs(token, logprob, top[:wish]),)

    def _prompt_logprobs(self, scores: Scores) -> Iterator[tuple[TokenLogprobs, ...]]:
        told = zip(self.host.target_ids.tolist(), _rows(scores), strict=True)
        for (_, count), wish in zip(self.host.target_rows, self.wishes.targets.tolist(), strict=True):
            yield tuple(TokenLogprobs(token, logprob, top[:wish]) for token, (logprob, top) in islice(told, count))


def _rows(scores: Scores) -> Iterator[tuple[float, tuple[tuple[int, float], ...]]]:
    """The log-probability of each row's token, and its (id, log-probability) pairs."""
    tops = zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    for logprob, (ids, logprobs) in zip(scores.logprobs.tolist(), tops, strict=True):
        yield logprob, tuple(zip(ids, logprobs, strict=True))


def _landed(scores: Scores | None, to_host: ToHost) -> Scores | None:
    if scores is None:
        return None
    return Scores(to_host(scores.logprobs), to_host(scores.top_ids), to_host(scores.top_logprobs))
