"""Logits to tokens: greedy, temperature, min-p, top-k, top-p, each row by itself.

A row's *score* is `logit / T + noise` where every filter keeps the token and -inf where one does not; its token is
the argmax (the Gumbel-max trick: Maddison, Tarlow and Minka, "A* sampling", NeurIPS 2014). A greedy row's score is
the logit. Ties go to the lowest id, in the filters too, so `top_k=1`, a tiny `top_p` and `temperature=0` agree.

Filters come in vLLM's order, after the temperature: min-p (drop what is less likely than `min_p` times the most
likely), top-k (keep k), top-p (keep the fewest whose share of what is left reaches `top_p`).

A row is computed from its own logits, parameters and noise alone. Which path it takes depends only on its own
parameters (`RowKind`), never on its neighbours, so company cannot change a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from sluice.runner.noise import gumbel
from sluice.types import SamplingParams

SHORT_TOP_K = 1024
"""Most ranks that are selected; for more the vocabulary is sorted. One width for every row and k."""

SLICE_ELEMENTS: Mapping[str, int] = {"cpu": 1 << 19, "cuda": 1 << 25}
"""Logits sampled at once: on a CPU what stays in its cache, on a GPU what bounds scratch memory (about 1 GiB)."""

BLOCK = 1024
"""Logits among which `first_of_largest` looks for one maximum."""

FAILED = -1
"""Token id of a row whose logits hold NaN or +inf, or nothing above -inf."""


class RowKind(Enum):
    """What sampling a row needs beside its logits."""

    GREEDY = "greedy"
    PLAIN = "plain"
    """Noise, and at most min-p."""
    SHORT = "short"
    """Noise, and ranks among the best `SHORT_TOP_K`."""
    FULL = "full"
    """Noise, and ranks among the whole vocabulary."""


def row_kind(params: SamplingParams, vocab_size: int) -> RowKind:
    """Return the kind of rows with these parameters."""
    if params.temperature == 0:
        return RowKind.GREEDY
    has_top_k = 0 < params.top_k < vocab_size
    if not has_top_k and params.top_p >= 1:
        return RowKind.PLAIN
    return RowKind.SHORT if has_top_k and params.top_k <= SHORT_TOP_K else RowKind.FULL


class SamplingRows(NamedTuple):
    """Parameters of R rows, on the logits' device. A `top_k` of the vocabulary size or more is off."""

    temperature: torch.Tensor
    """[R] float64"""
    min_p: torch.Tensor
    """[R] float64"""
    top_k: torch.Tensor
    """[R] int64, at least 1"""
    top_p: torch.Tensor
    """[R] float64"""
    noise_keys: torch.Tensor
    """[R] int64, `noise.noise_key` of each row's seed and sample index"""
    positions: torch.Tensor
    """[R] int64, position of the token being sampled"""

    def select(self, rows: torch.Tensor) -> SamplingRows:
        """Return the rows at indices [n] int64."""
        return SamplingRows(*(column.index_select(0, rows) for column in self))


class RowGroup(NamedTuple):
    """Rows of one kind. The host makes groups, since it knows the kinds."""

    kind: RowKind
    rows: torch.Tensor
    """[n] int64, ascending indices on the logits' device."""


def sample(logits: torch.Tensor, params: SamplingRows, groups: Sequence[RowGroup]) -> torch.Tensor:
    """Return one token for each row. No value comes to the host, so it does not wait for the device.

    Args:
        logits: [S, vocab], any float type; computed in float64 if float64, else in float32.
        params: S rows.
        groups: hold every row once.

    Returns:
        [S] int64 token ids, `FAILED` where no token can be sampled.
    """
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    per_slice = max(1, SLICE_ELEMENTS[logits.device.type] // logits.shape[1])
    for group in groups:
        slices = group.rows.split(per_slice)
        # All rows in their order need not be copied, and a row is as large as the vocabulary.
        is_all = group.rows.shape[0] == logits.shape[0]
        parts = logits.split(per_slice) if is_all else (logits.index_select(0, rows) for rows in slices)
        for rows, part in zip(slices, map(_widened, parts), strict=True):
            best = first_of_largest(scores(part, params.select(rows), group.kind))
            tokens.index_copy_(0, rows, best.masked_fill_(~_usable(part), FAILED))
    return tokens


def first_of_largest(values: torch.Tensor) -> torch.Tensor:
    """Return `argmax(-1)` of [R, width] as [R] int64, the lowest index of equal values.

    It finds the maximum of each block first, and then its index in one block: torch finds a maximum at the speed of
    memory, but takes several times as long for an index.
    """
    width = values.shape[1]
    if width <= BLOCK:
        return values.argmax(-1)
    blocks = width // BLOCK
    largest = values[:, : blocks * BLOCK].unflatten(-1, (blocks, BLOCK)).amax(-1)
    if width % BLOCK:
        largest = torch.cat((largest, values[:, blocks * BLOCK :].amax(-1, keepdim=True)), dim=-1)
    # A last block that is not whole is read with the end of the one before, which holds no value as large.
    starts = largest.argmax(-1, keepdim=True).mul_(BLOCK).clamp_(max=width - BLOCK)
    inside = values.gather(-1, starts + torch.arange(BLOCK, device=values.device))
    found: torch.Tensor = starts[:, 0] + inside.argmax(-1)
    return found


def scores(
    logits: torch.Tensor, params: SamplingRows, kind: RowKind, largest: torch.Tensor | None = None, first: int = 0
) -> torch.Tensor:
    """Return the values whose argmax is sampled. Where two runs differ, their two tokens' scores must nearly tie.

    Args:
        logits: [R, vocab] of rows of one kind.
        params: their R rows.
        largest: [R], the largest logit of each row, if `logits` are a part of greedy or plain rows.
        first: the lowest id of the part.

    Returns:
        [R, vocab], float64 for float64 logits, else float32: the logit for a greedy row, else
        (logit - the row's largest) / T + noise, -inf where filtered out.
    """
    logits = _widened(logits)
    if kind is RowKind.GREEDY:
        return logits
    largest = logits.amax(-1) if largest is None else largest.to(logits.dtype)
    scaled = _scaled(logits, largest, params.temperature)
    scaled.masked_fill_(scaled < params.min_p.to(scaled.dtype).log_()[:, None], -torch.inf)
    if kind is not RowKind.PLAIN:
        width = scaled.shape[1]
        scaled = _best_ranked(scaled, params, min(width, SHORT_TOP_K) if kind is RowKind.SHORT else width)
    return scaled.add_(gumbel(params.noise_keys, params.positions, logits.shape[1], logits.dtype, first))


def _widened(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)


def _usable(logits: torch.Tensor) -> torch.Tensor:
    """Return [R] bool, whether the largest logit is finite. NaN and +inf both win a maximum."""
    return logits.amax(-1).isfinite()


def _scaled(logits: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities at each row's temperature, up to a constant: the largest is 0.

    Subtracting first keeps the largest finite at any temperature; only the others may overflow, to -inf.
    """
    limits = torch.finfo(logits.dtype)
    divisor = temperature.clamp(limits.tiny, limits.max).to(logits.dtype)
    return (logits - largest[:, None]).div_(divisor[:, None])


def _best_ranked(scaled: torch.Tensor, params: SamplingRows, width: int) -> torch.Tensor:
    """Keep what top-k and then top-p keep, and set the rest to -inf.

    Both keep some number of the best, so both are a number of ranks, and the number of ranks is a threshold plus how
    many of the values equal to it stay (the lowest ids do).

    Args:
        scaled: [R, vocab], log-probabilities up to a constant.
        width: how many of the best values can be kept.
    """
    is_partial = width < scaled.shape[1]
    best = scaled.topk(width).values if is_partial else scaled.sort(descending=True).values
    ranks = torch.arange(width, device=scaled.device)
    kept = params.top_k[:, None] > ranks
    shares = best.masked_fill(~kept, -torch.inf).softmax(-1)
    share_before = shares.cumsum(-1).sub_(shares)
    top_p = params.top_p.to(scaled.dtype)[:, None]
    kept &= (share_before < top_p) | (top_p >= 1)
    last = kept.sum(-1, keepdim=True).sub_(1).clamp_(min=0)  # 0 kept: the row is NaN, and fails later
    threshold = best.gather(-1, last)
    ties_kept = (kept & (best == threshold)).sum(-1, keepdim=True)
    ties = scaled == threshold
    stays = (scaled > threshold) | (ties & (ties.cumsum(-1) <= ties_kept))
    return scaled.masked_fill_(~stays, -torch.inf)
