"""The drafter's part of a step as arrays: which rows it computes, and from which position on.

    guesses   rows whose drafts the runner guesses, most drafts first: [what the drafter lacks | guess | guess | ...]
    follows   rows that the drafter computes without a guess, so that it has the KV of their tokens: pieces of prompts,
              and requests that have decoded `FOLLOW_AFTER` tokens without it

A decode without drafts costs the drafter nothing at once: a row of many tokens later takes hardly longer than one of a
single token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sluice.runner.inputs import Ints, Ints32
from sluice.types import BatchPlan, Chunk

FOLLOW_AFTER = 64
"""Tokens that the drafter may lack of a request that only decodes."""


class DraftPiece(NamedTuple):
    """Consecutive known tokens of one request that the drafter is to compute."""

    slot: int
    begin: int
    end: int
    has_state_to: int
    """The target's states are there for the tokens before this position."""
    num_drafts: int = 0
    """Tokens behind its end to guess."""


class DraftRows(NamedTuple):
    """Rows of the drafter's own forward; N tokens in B rows."""

    positions: Ints
    """[N]"""
    kv_slots: Ints
    """[N]"""
    before: Ints
    """[N] KV slot of the state that each token reads: that of the position before, if the target has been there"""
    slots: Ints
    """[B]"""
    q_starts: Ints32
    """[B + 1]"""
    kv_lens: Ints32
    """[B]"""

    @classmethod
    def of(cls, pieces: Sequence[DraftPiece], page_table: Ints32, page_size: int) -> DraftRows:
        """Lay pieces out.

        Args:
            page_table: [slots, max_pages] int32, the host's copy, with this step's pages.
        """
        slots = np.array([piece.slot for piece in pieces], dtype=np.int64)
        begins = np.array([piece.begin for piece in pieces], dtype=np.int64)
        ends = np.array([piece.end for piece in pieces], dtype=np.int64)
        lengths = ends - begins
        q_starts = np.concatenate((np.zeros(1, dtype=np.int64), lengths.cumsum()))
        of_token = np.repeat(np.arange(len(pieces)), lengths)
        positions = np.arange(q_starts[-1]) + (begins - q_starts[:-1])[of_token]
        known = np.array([piece.has_state_to for piece in pieces], dtype=np.int64)[of_token]
        before = np.minimum(positions, known).clip(min=1) - 1
        owner = slots[of_token]
        return cls(
            positions=positions,
            kv_slots=kv_slots(page_table, owner, positions, page_size),
            before=kv_slots(page_table, owner, before, page_size),
            slots=slots,
            q_starts=q_starts.astype(np.int32),
            kv_lens=ends.astype(np.int32),
        )


def kv_slots(page_table: Ints32, slots: Ints, positions: Ints, page_size: int) -> Ints:
    """Return where in the pages some positions [N] of the requests in `slots` [N] are, [N]."""
    return page_table[slots, positions // page_size].astype(np.int64) * page_size + positions % page_size


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The drafter's part of one step, on the host."""

    guesses: tuple[DraftPiece, ...]
    """Most drafts first."""
    follows: tuple[DraftPiece, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows that guess a first, a second, ... draft."""
        most = self.guesses[0].num_drafts if self.guesses else 0
        return tuple(sum(piece.num_drafts > number for piece in self.guesses) for number in range(most))

    @property
    def guessed(self) -> tuple[Ints, Ints]:
        """The slots of the rows that guess, and the positions of their first drafts."""
        pairs = [(piece.slot, piece.end) for piece in self.guesses]
        slots, ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
        return slots, ends


@dataclass(slots=True)
class DraftProgress:
    """How far the drafter has come in the request of each slot: it has the KV of all positions below.

    Args:
        reads_states: the KV of a guess is written anew when the target has been at its position.
    """

    num_slots: int
    reads_states: bool
    done: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.done = np.zeros(self.num_slots, dtype=np.int64)

    def lay_out(self, plan: BatchPlan) -> DraftLayout:
        """Return what the drafter does in a step, and count it as done. Steps come in the order of their launch.

        Args:
            plan: checked, without offloaded chunks.
        """
        fresh = {new.slot for new in plan.new_slots}
        guesses, follows = [], []
        for chunk in plan.chunks:
            slot = chunk.slot
            begin = chunk.start if slot in fresh else min(int(self.done[slot]), chunk.start)
            self.done[slot] = begin
            if is_guessed(chunk):
                guesses.append(self._guess(chunk, begin))
            elif not chunk.num_drafts and (chunk.length > 1 or chunk.end - begin >= FOLLOW_AFTER):
                follows.append(DraftPiece(slot, begin, chunk.end, chunk.end))
                self.done[slot] = chunk.end
        guesses.sort(key=lambda piece: -piece.num_drafts)
        return DraftLayout(tuple(guesses), tuple(follows))

    def _guess(self, chunk: Chunk, begin: int) -> DraftPiece:
        end = chunk.known_end
        self.done[chunk.slot] = end if self.reads_states else end + chunk.num_drafts - 1
        # The target has not been at the chunk's own tokens yet.
        return DraftPiece(chunk.slot, min(begin, end - 1), end, chunk.start, chunk.num_drafts)


def is_guessed(chunk: Chunk) -> bool:
    """Return whether the runner is to guess the drafts of a chunk."""
    return chunk.num_drafts > 0 and len(chunk.token_ids) < chunk.length
