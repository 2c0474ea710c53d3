"""A step on its way: what was sampled and scored travels to the host, and becomes a `BatchResult` there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from sluice.runner.inputs import HostBatch
from sluice.runner.logprobs import NOTHING, Scores, StepWishes
from sluice.runner.sampler import FAILED
from sluice.runner.waiting import nobody, wait_until
from sluice.types import BatchResult, RowError, TokenLogprobs

BAD_LOGITS = "the model gave logits that are NaN, infinite or all -inf; the request cannot go on"


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step whose results are on the host, or on their way there."""

    step: int
    host: HostBatch
    wishes: StepWishes
    tokens: torch.Tensor
    """[S] int64 on the host"""
    of_samples: Scores | None
    """On the host, of the samples asked for."""
    of_targets: Scores | None
    """On the host, of all targets."""
    copied: torch.cuda.Event | None
    """Set when all of it has arrived; None: it already has."""
    tick: Callable[[], None] = nobody
    """Called every second while it is waited for."""

    @classmethod
    def landing(
        cls,
        step: int,
        host: HostBatch,
        wishes: StepWishes,
        tokens: torch.Tensor,
        of_samples: Scores | None,
        of_targets: Scores | None,
        tick: Callable[[], None] = nobody,
    ) -> LaunchedStep:
        """Start bringing results to the host; waits for nothing."""
        device = tokens.device
        if device.type == "cpu":
            return cls(step, host, wishes, tokens, of_samples, of_targets, None)
        landed = cls(
            step,
            host,
            wishes,
            _land(tokens),
            _land_scores(of_samples),
            _land_scores(of_targets),
            torch.cuda.Event(),
            tick,
        )
        assert landed.copied is not None
        landed.copied.record(torch.cuda.current_stream(device))
        return landed

    def wait(self) -> BatchResult:
        """See `Pending.wait`. A row with bad logits, where it samples or before a target, is named in `errors`."""
        if self.copied is not None:
            wait_until(self.copied.query, self.tick)
        samples = list(zip(self.host.sample_rows.tolist(), self.tokens.tolist(), strict=True))
        prompts = [] if self.of_targets is None else list(self._prompt_logprobs(self.of_targets))
        rows = [row for row, _ in self.host.target_rows]
        failed = {row for row, token in samples if token == FAILED}
        failed.update(
            row for row, told in zip(rows, prompts, strict=True) if any(math.isnan(item.logprob) for item in told)
        )
        return BatchResult(
            self.step,
            tuple(() if row in failed else (token,) for row, token in samples),
            tuple(RowError(row, BAD_LOGITS) for row in sorted(failed)),
            () if self.of_samples is None else tuple(self._logprobs(self.of_samples, failed)),
            tuple(() if row in failed else told for row, told in zip(rows, prompts, strict=True)),
        )

    def _logprobs(self, scores: Scores, failed: set[int]) -> Iterator[tuple[TokenLogprobs, ...]]:
        told = _rows(scores)
        wishes = self.wishes.samples.tolist()
        for row, token, wish in zip(self.host.sample_rows.tolist(), self.tokens.tolist(), wishes, strict=True):
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


def _land(tensor: torch.Tensor) -> torch.Tensor:
    landing = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return landing.copy_(tensor, non_blocking=True)


def _land_scores(scores: Scores | None) -> Scores | None:
    if scores is None:
        return None
    return Scores(_land(scores.logprobs), _land(scores.top_ids), _land(scores.top_logprobs))
