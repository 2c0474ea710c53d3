"""The large operations on logits, as an interface that is chosen once for a device.

`LogitOps` defines each operation in plain torch. Its subclass computes the same in fewer passes over the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sluice.runner import sampler
from sluice.runner.sampler import SLICE_ELEMENTS, RowGroup, SamplingRows


class TokenTables(NamedTuple):
    """Which tokens C requests have, for penalties."""

    in_prompt: torch.Tensor
    """[C, vocab] bool, contiguous: whether the prompt holds a token."""
    outputs: torch.Tensor
    """[C, vocab] int32, contiguous: how often it was generated."""


class PenaltyValues(NamedTuple):
    """Penalties of P rows, as `SamplingParams` defines them: [P] float64 each."""

    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


class Scores(NamedTuple):
    """Log-probabilities of R tokens, and of the W most likely tokens in the place of each.

    float64 from logits in float64, else float32. NaN where a row's logits hold NaN or +inf, or nothing above -inf.
    """

    logprobs: torch.Tensor
    """[R]"""
    top_ids: torch.Tensor
    """[R, W] int64, best first."""
    top_logprobs: torch.Tensor
    """[R, W]"""


class LogitOps:
    """Operations of a step after the model, in plain torch. Each of them reads rows as long as the vocabulary."""

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        """Return one token for each row, as `sampler.sample` does."""
        return sampler.sample(logits, params, groups)

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        tables: TokenTables,
        table_rows: torch.Tensor,
        values: PenaltyValues,
    ) -> None:
        """Penalise P rows of logits in place.

        Args:
            logits: [S, vocab] float32 or float64, contiguous.
            rows: [P] int64, which of them, no row twice.
            tables: of the tokens so far.
            table_rows: [P] int64, the row of `tables` of each.
            values: of P rows.
        """
        # Some rows at a time: the work takes several times their memory.
        per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1])
        for start in range(0, len(rows), per_slice):
            part = slice(start, start + per_slice)
            in_prompt, outputs = (table.index_select(0, table_rows[part]) for table in tables)
            of_part = PenaltyValues(*(value[part] for value in values))
            changed = penalized(logits.index_select(0, rows[part]), TokenTables(in_prompt, outputs), of_part)
            logits.index_copy_(0, rows[part], changed)

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        """Exclude tokens from rows of logits, in place: they become -inf.

        Args:
            logits: [S, vocab], any float type, tokens of a row side by side.
            rows: [C] int64, which of them, no row twice.
            bits: [C, ceil(vocab / 32)] int32, bit `t % 32` of word `t // 32` is set if token `t` is allowed.
        """
        vocab_size = logits.shape[1]
        in_word = torch.arange(32, dtype=torch.int32, device=bits.device)
        per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // vocab_size)
        for start in range(0, len(rows), per_slice):
            part = slice(start, start + per_slice)
            allowed = (bits[part, :, None] >> in_word & 1).flatten(1)[:, :vocab_size]
            excluded = logits.index_select(0, rows[part]).masked_fill_(allowed == 0, -torch.inf)
            logits.index_copy_(0, rows[part], excluded)

    def totals(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log(sum(exp(logits))) of each row of [R, vocab]: [R], float64 for float64, else float32.

        NaN where a row holds NaN or +inf, or nothing above -inf.
        """
        total = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32).logsumexp(-1)
        return total.masked_fill_(~total.isfinite(), torch.nan)

    def score(self, logits: torch.Tensor, tokens: torch.Tensor, width: int) -> Scores:
        """Return the scores of one token in each row.

        Args:
            logits: [R, vocab], any float type.
            tokens: [R] int64, from 0.
            width: W, at most the size of the vocabulary.
        """
        total = self.totals(logits)[:, None]
        chosen = logits.gather(-1, tokens[:, None]).to(total.dtype)
        best = logits.topk(width)
        return Scores((chosen - total)[:, 0], best.indices, best.values.to(total.dtype) - total)

    def score_ids(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of some tokens in each row: [R, W], as in `Scores`.

        Args:
            logits: [R, vocab], any float type.
            ids: [R, W] int64.
        """
        total = self.totals(logits)[:, None]
        return logits.gather(-1, ids).to(total.dtype) - total

    def vocab_size(self, logits: torch.Tensor) -> int:
        """Return how many tokens there are, given logits of any number of rows."""
        return logits.shape[1]


def penalized(logits: torch.Tensor, tables: TokenTables, values: PenaltyValues) -> torch.Tensor:
    """Return logits [P, vocab], float32 or float64, with penalties; the tables and values are of the same P rows."""
    in_prompt, outputs = tables
    repetition, frequency, presence = (value.to(logits.dtype)[:, None] for value in values)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(in_prompt | (outputs > 0), repeated, logits)
    return logits - frequency * outputs - presence * (outputs > 0)


TORCH_LOGIT_OPS = LogitOps()
