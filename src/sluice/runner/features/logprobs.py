"""Log-probabilities of tokens from raw logits, a slice of bounded size at a time.

A row of logits is as large as the vocabulary: those of a whole chunk of a prompt would take more memory than the
model's activations. So the rows of a prompt are made from hidden states, scored and dropped in slices, and only a few
numbers of each are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import torch

from sluice.runner.features.base import BAD_LOGITS, SLICE_BYTES, Feature, Outcome, StagedFeature, StepLogits
from sluice.runner.inputs import HostBatch, Ints
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps, Scores
from sluice.types import NewSlot, TokenLogprobs

NOT_WANTED = -1
"""Number of alternatives of a row that asks for no log-probability."""


class StagedLogprobs(StagedFeature):
    """Log-probabilities of one step.

    Args:
        rows: [A] of the sampling rows, those that ask.
        num_top: [A] alternatives of each.
        num_target_top: alternatives of each row with targets.
        named: index among `rows` -> the tokens that are reported in the place of the most likely ones.
    """

    def __init__(
        self, host: HostBatch, rows: Ints, num_top: Ints, num_target_top: Ints, named: Mapping[int, Sequence[int]]
    ) -> None:
        self.keeps_raw = len(rows) > 0
        self._num_top = num_top
        self._num_target_top = num_target_top
        self._host_rows = rows
        self._named = named
        # Rows that name fewer tokens than others name token 0 as well.
        ids = np.zeros((len(named), max(map(len, named.values()), default=0)), dtype=np.int64)
        for line, tokens in zip(ids, named.values(), strict=True):
            line[: len(tokens)] = tokens
        self.arrays = (rows, host.target_ids, rows[list(named)], ids.ravel())

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        self._rows, self._target_ids, self._named_rows, self._named_ids = tensors

    def sampled(self, logits: StepLogits) -> tuple[torch.Tensor, ...]:
        scores: list[torch.Tensor] = []
        if len(self._rows):
            width = int(self._num_top.max())
            scores += score_rows(logits.raw, logits.tokens, self._rows, width, logits.slice_bytes, logits.ops)
        if len(self._target_ids):
            width = int(self._num_target_top.max())
            none = logits.logits_of(logits.target_hidden[:0])  # only the model knows how wide a row is
            scores += _score(
                lambda part: logits.logits_of(logits.target_hidden[part]),
                self._target_ids,
                none,
                width,
                logits.slice_bytes,
                logits.ops,
            )
        if self._named:
            ids = self._named_ids.view(len(self._named), -1)
            scores.append(logits.ops.score_ids(logits.raw.index_select(0, self._named_rows), ids))
        return tuple(scores)

    def report(self, tensors: Sequence[torch.Tensor], outcome: Outcome) -> None:
        of_named = tensors[-1].tolist() if self._named else []
        scores = iter([_rows(Scores(*tensors[at : at + 3])) for at in range(0, len(tensors) - 2, 3)])
        if len(self._host_rows):
            named = {
                index: tuple(zip(ids, found, strict=False))
                for (index, ids), found in zip(self._named.items(), of_named, strict=True)
            }
            outcome.logprobs = self._of_samples(next(scores), outcome.tokens, named)
        if len(outcome.host.target_ids):
            outcome.prompt_logprobs = self._of_targets(next(scores), outcome.host)
            for (row, _), found in zip(outcome.host.target_rows, outcome.prompt_logprobs, strict=True):
                if any(math.isnan(item.logprob) for item in found):
                    outcome.failed.setdefault(row, BAD_LOGITS)

    def _of_samples(
        self, scores: Iterator[_Score], tokens: Sequence[int], named: Mapping[int, tuple[tuple[int, float], ...]]
    ) -> list[tuple[TokenLogprobs, ...]]:
        found: list[tuple[TokenLogprobs, ...]] = [()] * len(tokens)
        asking = zip(self._host_rows.tolist(), self._num_top.tolist(), scores, strict=True)
        for index, (row, num_top, (logprob, top)) in enumerate(asking):
            found[row] = (TokenLogprobs(tokens[row], logprob, named.get(index, top[:num_top])),)
        return found

    def _of_targets(self, scores: Iterator[_Score], host: HostBatch) -> list[tuple[TokenLogprobs, ...]]:
        scored = zip(host.target_ids.tolist(), scores, strict=True)
        return [
            tuple(TokenLogprobs(token, logprob, top[:num_top]) for token, (logprob, top) in islice(scored, count))
            for (_, count), num_top in zip(host.target_rows, self._num_target_top.tolist(), strict=True)
        ]


class Logprobs(Feature):
    """How many alternatives every slot's request asks for, on the host."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._used: set[int] = set()
        """Slots whose request asks for log-probabilities of its output."""
        self._sampled: Ints = np.full(num_slots, NOT_WANTED, dtype=np.int64)
        self._prompt: Ints = np.full(num_slots, NOT_WANTED, dtype=np.int64)
        self._named: dict[int, tuple[int, ...]] = {}
        """Tokens that the requests of slots name."""

    def forget(self, slot: int) -> None:
        self._used.discard(slot)
        self._named.pop(slot, None)
        self._sampled[slot] = self._prompt[slot] = NOT_WANTED

    def fill(self, new: NewSlot) -> None:
        sampled, prompt = new.sampling.logprobs, new.sampling.prompt_logprobs
        if sampled is not None:
            self._used.add(new.slot)
            self._sampled[new.slot] = sampled
        if new.sampling.logprob_token_ids:
            self._named[new.slot] = new.sampling.logprob_token_ids
        if prompt is not None:
            self._prompt[new.slot] = prompt

    def stage(self, host: HostBatch) -> StagedLogprobs | None:
        if not self._used and not len(host.target_ids):
            return None
        num_top = self._sampled[host.sample_slots]
        rows = np.flatnonzero(num_top != NOT_WANTED)
        if not len(rows) and not len(host.target_ids):
            return None
        with_targets = [row for row, _ in host.target_rows]
        asking = host.sample_slots[rows].tolist() if self._named else []
        named = {index: self._named[slot] for index, slot in enumerate(asking) if slot in self._named}
        return StagedLogprobs(host, rows, num_top[rows], self._prompt[host.row_slots[with_targets]], named)


_Score = tuple[float, tuple[tuple[int, float], ...]]
"""The log-probability of a row's token, and its (id, log-probability) pairs."""


def _rows(scores: Scores) -> Iterator[_Score]:
    tops = zip(scores.top_ids.tolist(), scores.top_logprobs.tolist(), strict=True)
    for logprob, (ids, logprobs) in zip(scores.logprobs.tolist(), tops, strict=True):
        yield logprob, tuple(zip(ids, logprobs, strict=True))


def score_rows(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    rows: torch.Tensor,
    width: int,
    slice_bytes: int = SLICE_BYTES,
    ops: LogitOps = TORCH_LOGIT_OPS,
) -> Scores:
    """Return the scores of some sampled tokens.

    Args:
        logits: [S, vocab], raw.
        tokens: [S] int64; a row that failed, below 0, is scored as token 0.
        rows: [A] int64, which of them.
        width: alternatives of each.
        slice_bytes: most memory for logits that are scored at once, a row at least.
        ops: scores them.
    """
    chosen = tokens.index_select(0, rows).clamp_(min=0)
    return _score(lambda part: logits.index_select(0, rows[part]), chosen, logits, width, slice_bytes, ops)


def _score(
    logits_of: Callable[[slice], torch.Tensor],
    tokens: torch.Tensor,
    like: torch.Tensor,
    width: int,
    slice_bytes: int,
    ops: LogitOps,
) -> Scores:
    """Return the scores of tokens [R], whose rows of logits are made slice by slice.

    Args:
        like: logits of the same vocabulary and dtype.
    """
    vocab_size = ops.vocab_size(like)
    itemsize = 8 if like.dtype == torch.float64 else 4
    per_slice = max(1, slice_bytes // (vocab_size * itemsize))
    parts = [
        ops.score(logits_of(part), tokens[part], min(width, vocab_size))
        for part in (slice(start, start + per_slice) for start in range(0, len(tokens), per_slice))
    ]
    return Scores(*map(torch.cat, zip(*parts, strict=True)))
