"""The place of a row in its grammar, and the masks behind its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ranks import FakeGrammar, FakeMatcher
from sluice.runner.constrained_row import ConstrainedRow
from sluice.runner.draft_masks import DraftMasks, only
from sluice.runner.grammar.base import CompiledGrammar
from sluice.runner.grammar.guidance import Bits, GrammarError
from sluice.testing import resolved
from sluice.types import NewSlot, Submit

VOCAB = 67
BROKEN = 7


def row_of(grammar: CompiledGrammar, *, logprobs: int | None = None, min_tokens: int = 0) -> ConstrainedRow:
    sampling = replace(resolved(40), logprobs=logprobs, min_tokens=min_tokens, stop_token_ids=(2, 3))
    row = ConstrainedRow(NewSlot(0, Submit(0, (), sampling), 3, (1, 2, 3)), grammar, VOCAB)
    row.compute()
    return row


def followed(row: ConstrainedRow, drafts: Sequence[int]) -> list[list[int]]:
    masks = DraftMasks(row, drafts, 60.0)
    masks.compute()
    assert masks.is_done(0)
    return [bits.tolist() for bits in masks.found]


def one_by_one(row: ConstrainedRow, drafts: Sequence[int]) -> list[list[int]]:
    """The masks that the row has if it samples the drafts, as far as it may."""
    found: list[list[int]] = []
    drafts = list(drafts)
    while drafts and drafts[0] not in row.stop_ids and row.bits[drafts[0] // 32] >> drafts[0] % 32 & 1:
        _, *forced = row.advance((drafts.pop(0),))
        if row.is_complete:
            return found
        while forced and drafts:
            found.append(only(forced[0], len(row.bits)).tolist())
            if drafts[0] != forced.pop(0):
                return found
            drafts.pop(0)
        if forced:
            return [*found, only(forced[0], len(row.bits)).tolist()]
        row.compute()
        found.append(row.bits.tolist())
    return found


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("min_tokens", [0, 2, 9])
def test_masks_behind_drafts_are_those_of_the_row(logprobs: int | None, min_tokens: int) -> None:
    """Forced tokens and stop tokens at their places, and none behind a draft that may not be."""
    draws, lengths = np.random.default_rng(min_tokens), []
    for _ in range(200):
        drafts = draws.integers(0, 20, 4).tolist()
        ask = {"logprobs": logprobs, "min_tokens": min_tokens}
        expected = one_by_one(row_of(FakeGrammar(VOCAB), **ask), drafts)
        assert followed(row_of(FakeGrammar(VOCAB), **ask), drafts) == expected
        lengths.append(len(expected))
    assert {0, 1, 2, 3} <= set(lengths)


def test_a_row_that_went_on_is_not_followed() -> None:
    """A thread that comes too late would copy the matcher of another place."""
    row = row_of(FakeGrammar(VOCAB))
    masks = DraftMasks(row, (5, 6), 60.0)
    row.advance((4,))
    row.compute()
    masks.compute()
    assert masks.found == []


class Breaking(FakeGrammar):
    """Cannot look ahead, and cannot go on after one token."""

    def matcher(self, *, may_force: bool = True) -> FakeMatcher:
        return BreakingMatcher(self.vocab_size, may_force=may_force)


class BreakingMatcher(FakeMatcher):
    def __init__(self, vocab_size: int, *, may_force: bool) -> None:
        super().__init__(vocab_size)
        self._may_force = may_force

    def consume(self, tokens: Sequence[int]) -> None:
        if BROKEN in tokens:
            raise GrammarError("a limit was reached")
        super().consume(tokens)

    def fill(self, bits: Bits) -> None:
        if self._may_force:
            raise GrammarError("a limit was reached")
        super().fill(bits)


def test_what_comes_before_a_token_that_ends_a_row_is_brought() -> None:
    """The row fails in the next step, where it would have failed without drafts."""
    row = row_of(Breaking(VOCAB), logprobs=0)
    assert row.advance((4, 5, BROKEN)) == (4, 5)
    assert row.is_ready(0)
    assert row.problem == "the grammar cannot go on after 3 output tokens: a limit was reached"
    other = row_of(Breaking(VOCAB), logprobs=0)
    assert other.advance((BROKEN,)) == ()
    assert other.problem == "the grammar cannot go on after 1 output tokens: a limit was reached"
