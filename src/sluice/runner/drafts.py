"""Verification of drafts: which of a row's samples count.

    known tokens   | draft | draft | draft |        the row's last inputs
    sample           sample  sample  sample         one behind the last known token and behind each draft

Every sample is drawn as without drafts: by its own logits, parameters and the noise of its position. A draft is right
if it is the token that was sampled in its place, and a sample counts if all drafts before it are right, since only then
its logits are those of the request's own tokens. So drafts decide how many tokens a step brings, and never which. This
is stricter than rejection sampling (Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
decoding", ICML 2023), which keeps the distribution alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from sluice.device.transport import Array
from sluice.runner.inputs import HostDrafts, Ints
from sluice.runner.last_tokens import STALE, LastTokens
from sluice.runner.sampler import FAILED
from sluice.types import TokenLogprobs

UNREACHED = -3
"""Token id of a sample behind a wrong draft."""


class StagedDrafts:
    """The drafts of one step on the device. Where the runner guesses, `ids` are those of its drafter when they are
    verified."""

    def __init__(self, host: HostDrafts) -> None:
        rows: Ints = host.row_of
        self.host = host
        self.arrays: tuple[Array, ...] = (host.ids, host.samples, host.firsts, rows)

    def arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Receive `arrays` on the device, before the forward."""
        self.ids, self.samples, self._firsts, self._row_of = tensors

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what was sampled [S] with `UNREACHED` behind each row's first wrong draft. No draft is right in the
        place of a sample that failed."""
        is_wrong = torch.zeros_like(tokens)
        is_wrong.index_copy_(0, self.samples, (tokens.index_select(0, self.samples) != self.ids).to(tokens.dtype))
        wrong_before = is_wrong.cumsum(0).sub_(is_wrong)
        of_row = wrong_before.index_select(0, self._firsts).index_select(0, self._row_of)
        return tokens.masked_fill(wrong_before != of_row, UNREACHED)

    def write(self, last_tokens: LastTokens, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Keep the last token that each row brings, and return all for the host, [S].

        Args:
            slots: [R] of the rows.
            tokens: [S], verified.
        """
        brought = torch.zeros_like(slots).index_add_(0, self._row_of, (tokens >= 0).to(tokens.dtype))
        last = tokens.index_select(0, self._firsts + brought.sub_(1).clamp_(min=0))
        is_stale = last_tokens.write(slots, last) == STALE
        return tokens.masked_fill(is_stale.index_select(0, self._row_of), STALE)


class RowsBrought(NamedTuple):
    """Like the fields of `BatchResult`, an entry for each row that samples."""

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[TokenLogprobs, ...], ...]
    accepted: tuple[int, ...]


def reached(tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the samples of one row that count: up to the first that failed or is `UNREACHED`."""
    end = next((at for at, token in enumerate(tokens) if token < 0), len(tokens))
    return tuple(tokens[:end])


def rows_brought(
    drafts: HostDrafts,
    tokens: Sequence[int],
    logprobs: Sequence[tuple[TokenLogprobs, ...]],
    others: Mapping[int, tuple[int, ...]],
) -> RowsBrought:
    """Return what rows bring, given what they sampled.

    A sample that failed behind a right draft ends what its row brings; it is drawn again in the next step, and fails
    there if it must.

    Args:
        tokens: [S], verified.
        logprobs: [S]; empty if no row asked.
        others: tokens of rows that bring others than those in `tokens`, by their first sample; none if the row failed.
    """
    token_ids, of_rows, accepted = [], [], []
    for first, end in drafts.spans():
        own = reached(tokens[first:end])
        row = others.get(first, own)
        token_ids.append(row)
        accepted.append(max(0, min(len(own), len(row)) - 1))
        of_rows.append(tuple(chain.from_iterable(logprobs[first : first + min(len(own), len(row))])))
    return RowsBrought(tuple(token_ids), tuple(of_rows) if logprobs else (), tuple(accepted))


def samples_of(
    drafts: HostDrafts, token_ids: Sequence[tuple[int, ...]], logprobs: Sequence[tuple[TokenLogprobs, ...]]
) -> tuple[list[int], list[tuple[TokenLogprobs, ...]]]:
    """Return tokens and log-probabilities [S] of which `rows_brought` makes these of each row."""
    count = int(drafts.counts.sum())
    tokens = [UNREACHED] * count
    of_samples: list[tuple[TokenLogprobs, ...]] = [()] * count
    for (first, _), row in zip(drafts.spans(), token_ids, strict=True):
        tokens[first : first + len(row)] = row
        tokens[first] = row[0] if row else FAILED
    for (first, _), scored in zip(drafts.spans(), logprobs, strict=False):
        of_samples[first : first + len(scored)] = [(each,) for each in scored]
    return tokens, of_samples if logprobs else []
