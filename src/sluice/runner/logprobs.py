"""How likely tokens are: log-probabilities from raw logits, a slice of bounded size at a time.

A row of logits is as large as the vocabulary: those of a whole chunk of a prompt would take more memory than the
model's activations. So the rows of a prompt are made from hidden states, scored and dropped in slices, and what is
left of each is a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from sluice.device.upload import upload
from sluice.runner.inputs import HostBatch, Ints
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.types import NewSlot

SLICE_BYTES = 64 << 20
"""Size of a slice of logits in the type they are computed with, float32 or wider."""

NOTHING = -1
"""Instead of a number of alternatives where nothing is asked for."""


@dataclass(frozen=True, slots=True)
class StepWishes:
    """How many alternatives a step is to tell, on the host; `NOTHING` where no log-probability is asked for."""

    samples: Ints
    """[S], of each row that samples"""
    targets: Ints
    """of each row that has targets"""


class LogprobWishes:
    """What each slot's request asks for, on the host.

    Args:
        num_slots: rows.
    """

    def __init__(self, num_slots: int) -> None:
        self._sampled: Ints = np.full(num_slots, NOTHING, dtype=np.int64)
        self._prompt: Ints = np.full(num_slots, NOTHING, dtype=np.int64)

    def fill(self, new: NewSlot) -> None:
        """Take over a new request's wishes."""
        sampled, prompt = new.sampling.logprobs, new.sampling.prompt_logprobs
        self._sampled[new.slot] = NOTHING if sampled is None else sampled
        self._prompt[new.slot] = NOTHING if prompt is None else prompt

    def step(self, host: HostBatch) -> StepWishes:
        """Those of a step's rows."""
        with_targets = [row for row, _ in host.target_rows]
        return StepWishes(self._sampled[host.sample_slots], self._prompt[host.row_slots[with_targets]])


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of R tokens and of the W most likely ones in the place of each.

    float64 from logits in float64, else float32. NaN where a row's logits hold NaN or +inf, or nothing above -inf.
    """

    logprobs: torch.Tensor
    """[R]"""
    top_ids: torch.Tensor
    """[R, W] int64, best first"""
    top_logprobs: torch.Tensor
    """[R, W]"""

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        return cls(
            torch.cat([part.logprobs for part in parts]),
            torch.cat([part.top_ids for part in parts]),
            torch.cat([part.top_logprobs for part in parts]),
        )


def score_samples(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    wishes: Ints,
    slice_bytes: int = SLICE_BYTES,
    ops: LogitOps = TORCH_LOGIT_OPS,
) -> Scores | None:
    """The scores of sampled tokens, in the order of the rows whose wish is not `NOTHING`; None without such rows.

    Args:
        logits: [S, vocab], raw.
        tokens: [S] int64; a row that failed, below 0, is scored as token 0.
        wishes: [S] alternatives.
        slice_bytes: logits worked on at once, a row at least.
        ops: what sums them up.
    """
    asking = np.flatnonzero(wishes != NOTHING)
    if len(asking) == 0:
        return None
    (rows,) = upload(logits.device, asking)
    chosen = tokens.index_select(0, rows).clamp_(min=0)
    width = min(int(wishes.max()), logits.shape[1])
    per_slice = _per_slice(logits, slice_bytes)
    return _score(lambda part: logits.index_select(0, rows[part]), chosen, width, per_slice, ops)


def score_targets(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    host: HostBatch,
    wishes: Ints,
    slice_bytes: int = SLICE_BYTES,
    ops: LogitOps = TORCH_LOGIT_OPS,
) -> Scores | None:
    """The scores of a step's targets; None without any.

    Args:
        logits_of: [R, hidden_size] to [R, vocab].
        hidden: [T, hidden_size], after the token before each target.
        host: the step.
        wishes: alternatives, of each row with targets.
        slice_bytes: logits there are at once, a row at least.
        ops: what sums them up.
    """
    if len(host.target_ids) == 0:
        return None
    (targets,) = upload(hidden.device, host.target_ids)
    none = logits_of(hidden[:0])  # only the model knows how wide a row is
    width = min(int(wishes.max()), none.shape[1])
    return _score(lambda part: logits_of(hidden[part]), targets, width, _per_slice(none, slice_bytes), ops)


def _per_slice(logits: torch.Tensor, slice_bytes: int) -> int:
    """Rows of logits like these in one slice."""
    return max(1, slice_bytes // (logits.shape[1] * _wide(logits.dtype).itemsize))


def _score(
    logits_of: Callable[[slice], torch.Tensor], tokens: torch.Tensor, width: int, rows_per_slice: int, ops: LogitOps
) -> Scores:
    starts = range(0, len(tokens), rows_per_slice)
    slices = [slice(start, start + rows_per_slice) for start in starts]
    return Scores.joined([_score_slice(logits_of(part), tokens[part], width, ops) for part in slices])


def _score_slice(logits: torch.Tensor, tokens: torch.Tensor, width: int, ops: LogitOps) -> Scores:
    total = ops.totals(logits)[:, None]
    chosen = logits.gather(-1, tokens[:, None]).to(total.dtype)
    best = logits.topk(width)
    return Scores((chosen - total)[:, 0], best.indices, best.values.to(total.dtype) - total)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
