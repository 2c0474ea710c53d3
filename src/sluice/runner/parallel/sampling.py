"""Sampling and scoring where each rank has the logits of a part of the vocabulary.

A token is a function of a row's logits, its parameters and its noise, and noise is keyed by the token's id. So ranks
exchange a few numbers of each row and find the same token, whatever the number of ranks:

    greedy rows    the largest logit of each rank and its id, 16 bytes
    plain rows     the largest logit, then the best score and its id
    ranked rows    all logits: top-k and top-p go by what the others are
    scores         log(sum(exp(logits))), the logit of the token, and the best tokens

Penalties, biases and masks change each logit by itself, where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from sluice.parallel.group import Group
from sluice.parallel.layout import WORD
from sluice.runner.logit_ops import LogitOps, PenaltyValues, Scores, TokenTables
from sluice.runner.sampler import FAILED, SLICE_ELEMENTS, RowGroup, RowKind, SamplingRows, first_of_largest, scores


class ShardedLogitOps(LogitOps):
    """The operations on logits [S, own], the columns of this rank. Every rank of the group calls them alike.

    Args:
        inner: the operations on a part by itself.
        group: the ranks that have the parts.
        shards: the tokens of each rank, one behind the other; all but the last begin and end between words of a mask.

    Raises:
        ValueError: a rank has no token.
    """

    def __init__(self, inner: LogitOps, group: Group, shards: Sequence[range]) -> None:
        if not all(shards):
            raise ValueError(f"each of {len(shards)} ranks must have tokens of a vocabulary, got {list(shards)}")
        self._inner = inner
        self._group = group
        self._shards = shards
        self._own = shards[group.rank]
        self._vocab_size = shards[-1].stop

    def vocab_size(self, logits: torch.Tensor) -> int:
        return self._vocab_size

    def sample(self, logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
        tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        for group in groups:
            is_all = group.rows.shape[0] == logits.shape[0]
            part = logits if is_all else logits.index_select(0, group.rows)
            of_part = params.select(group.rows)
            if group.kind in (RowKind.GREEDY, RowKind.PLAIN):
                found = self._best(part, of_part, group.kind)
            else:
                found = self._ranked(part, of_part, group.kind)
            tokens.index_copy_(0, group.rows, found)
        return tokens

    def penalize(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        tables: TokenTables,
        table_rows: torch.Tensor,
        values: PenaltyValues,
    ) -> None:
        """Penalise rows of this part, by tables [C, own]."""
        self._inner.penalize(logits, rows, tables, table_rows, values)

    def mask(self, logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
        """Exclude tokens of this part, by masks [C, words] of the whole vocabulary."""
        words = slice(self._own.start // WORD, -(-self._own.stop // WORD))
        self._inner.mask(logits, rows, bits[:, words].contiguous())

    def score(self, logits: torch.Tensor, tokens: torch.Tensor, width: int) -> Scores:
        """Return the scores of tokens of the whole vocabulary. Sums differ in rounding from those of one rank."""
        total = self._inner.totals(logits)
        total = torch.where(logits.amax(-1) == -torch.inf, -torch.inf, total)  # a part may hold nothing
        columns = (tokens - self._own.start)[:, None]
        nearest = columns.clamp(0, len(self._own) - 1)
        chosen = logits.gather(-1, nearest).masked_fill_(columns != nearest, -torch.inf)
        best = logits.topk(min(width, len(self._own)))
        missing = (0, width - best.values.shape[1])
        values, ids = pad(best.values.double(), missing), pad(best.indices + self._own.start, missing).double()
        own = torch.cat((total.double()[:, None], chosen.double(), values, ids), -1)
        return self._combined(self._group.all_gather(own), width, total.dtype)

    def score_ids(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of tokens of the whole vocabulary, one column of `score` at a time."""
        columns = [self.score(logits, tokens, 0).logprobs for tokens in ids.unbind(1)]
        return torch.stack(columns, 1)

    def _combined(self, gathered: torch.Tensor, width: int, dtype: torch.dtype) -> Scores:
        """Return the scores of whole rows from those of each part.

        Args:
            gathered: [size, R, 2 + 2 * width] float64.
        """
        totals = gathered[..., 0].logsumexp(0)
        total = totals.masked_fill_(~totals.isfinite(), torch.nan).to(dtype)[:, None]
        chosen = gathered[..., 1].amax(0).to(dtype)
        values, ids = gathered[..., 2:].tensor_split(2, -1)
        counts = [min(width, len(shard)) for shard in self._shards]
        best = _joined(values, counts).topk(width)
        return Scores(
            chosen - total[:, 0],
            _joined(ids, counts).gather(-1, best.indices).long(),
            best.values.to(dtype) - total,
        )

    def _best(self, logits: torch.Tensor, params: SamplingRows, kind: RowKind) -> torch.Tensor:
        """Return the tokens [n] of rows whose score is a function of one logit and the largest."""
        per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1])
        largest = self._group.all_gather(logits.amax(-1).double()).amax(0) if kind is RowKind.PLAIN else None
        rows = torch.arange(len(logits), device=logits.device)
        pairs = [
            self._best_of_part(logits[part], params.select(part), kind, None if largest is None else largest[part])
            for part in rows.split(per_slice)
        ]
        values, ids = self._group.all_gather(torch.cat(pairs, 1)).unbind(1)
        if largest is None:
            largest = values.amax(0)
        winner = values.argmax(0, keepdim=True)  # the first of equal ones, whose ids are lower
        return ids.gather(0, winner)[0].long().masked_fill_(~largest.isfinite(), FAILED)

    def _best_of_part(
        self, logits: torch.Tensor, params: SamplingRows, kind: RowKind, largest: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the best score of each row of this part, and its id: [2, n] float64, which holds both exactly."""
        values = scores(logits, params, kind, largest, self._own.start)
        at = first_of_largest(values)
        return torch.stack((values.gather(-1, at[:, None])[:, 0].double(), (at + self._own.start).double()))

    def _ranked(self, logits: torch.Tensor, params: SamplingRows, kind: RowKind) -> torch.Tensor:
        """Return the tokens [n] of rows whose scores need all logits: every rank samples from all of them."""
        per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // self._vocab_size)
        rows = torch.arange(len(logits), device=logits.device)
        found = [
            self._inner.sample(self._whole(logits[part]), params.select(part), [RowGroup(kind, part - part[0])])
            for part in rows.split(per_slice)
        ]
        return torch.cat(found)

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        """Return all logits of rows, [n, vocab]."""
        padded = pad(logits, (0, max(map(len, self._shards)) - logits.shape[1]))
        return _joined(self._group.all_gather(padded), [len(shard) for shard in self._shards])


def _joined(parts: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Return the columns of all parts [size, n, width or more] side by side, [n, sum(widths)]."""
    return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], -1)
