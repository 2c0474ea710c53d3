"""Which tokens a drafter computes in a step, and where: it never skips a token, and writes to no page of others."""

from __future__ import annotations

import numpy as np

from sluice.runner.drafting.layout import FOLLOW_AFTER, DraftPiece, DraftProgress, DraftRows
from sluice.types import BatchPlan, Chunk, NewSlot, SamplingParams, Submit

GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=8)


def chunk(slot: int, start: int, length: int, drafts: int = 0, *, known_ids: bool = True) -> Chunk:
    """A chunk of `length` known tokens and drafts that the runner guesses, unless their ids are known."""
    ids = (1,) * (length + (drafts if known_ids else 0))
    return Chunk(slot, slot, start, length + drafts, ids, (), samples=True, num_drafts=drafts)


def plan(*chunks: Chunk, fresh: bool = False) -> BatchPlan:
    new = tuple(NewSlot(each.slot, Submit(each.request_id, (), GREEDY)) for each in chunks) if fresh else ()
    return BatchPlan(0, new, chunks)


def test_prompts_are_followed_and_decodes_are_not() -> None:
    progress = DraftProgress(4, reads_states=False)
    layout = progress.lay_out(plan(chunk(0, 8, 5), chunk(1, 0, 1), fresh=True))
    assert layout.follows == (DraftPiece(0, 8, 13, 13),)
    assert not layout.guesses
    assert not progress.lay_out(plan(chunk(0, 13, 1), chunk(1, 1, 1))).follows
    layout = progress.lay_out(plan(chunk(1, 2, 3)))
    assert layout.follows == (DraftPiece(1, 0, 5, 5),), "with what it lacked before"


def test_a_guess_computes_what_is_lacking() -> None:
    progress = DraftProgress(4, reads_states=False)
    progress.lay_out(plan(chunk(0, 0, 7), fresh=True))
    progress.lay_out(plan(chunk(0, 7, 1)))
    layout = progress.lay_out(plan(chunk(0, 8, 1, 3, known_ids=False)))
    assert layout.guesses == (DraftPiece(0, 7, 9, 8, 3),)
    assert layout.counts == (1, 1, 1)
    # All three were right: of the last one, at 11, there is no key yet.
    assert progress.lay_out(plan(chunk(0, 12, 1, 2, known_ids=False))).guesses == (DraftPiece(0, 11, 13, 12, 2),)
    # None was right: what was guessed at 13 is another token now.
    assert progress.lay_out(plan(chunk(0, 13, 1, 1, known_ids=False))).guesses == (DraftPiece(0, 13, 14, 13, 1),)


def test_keys_of_own_states_are_written_anew() -> None:
    """A head's guesses follow states of its own; the target's are better, and its later keys were made from them."""
    progress = DraftProgress(4, reads_states=True)
    progress.lay_out(plan(chunk(0, 0, 7), fresh=True))
    progress.lay_out(plan(chunk(0, 7, 1, 3, known_ids=False)))
    assert progress.lay_out(plan(chunk(0, 11, 1, 1, known_ids=False))).guesses == (DraftPiece(0, 8, 12, 11, 1),)


def test_long_decodes_are_followed_at_times() -> None:
    progress = DraftProgress(4, reads_states=False)
    progress.lay_out(plan(chunk(0, 0, 5), fresh=True))
    followed = [progress.lay_out(plan(chunk(0, start, 1))).follows for start in range(5, 5 + 2 * FOLLOW_AFTER)]
    assert [(piece.begin, piece.end) for pieces in followed for piece in pieces] == [
        (5, 5 + FOLLOW_AFTER),
        (5 + FOLLOW_AFTER, 5 + 2 * FOLLOW_AFTER),
    ]


def test_a_slot_of_another_request_begins_anew() -> None:
    """A cached prefix was computed by the request that it is from."""
    progress = DraftProgress(4, reads_states=False)
    progress.lay_out(plan(chunk(0, 0, 50), fresh=True))
    assert progress.lay_out(plan(chunk(0, 16, 4), fresh=True)).follows == (DraftPiece(0, 16, 20, 20),)
    assert progress.lay_out(plan(chunk(0, 10, 1, 1, known_ids=False))).guesses == (DraftPiece(0, 10, 11, 10, 1),)


def test_drafts_with_ids_are_left_to_their_guesser() -> None:
    progress = DraftProgress(4, reads_states=False)
    layout = progress.lay_out(plan(chunk(0, 0, 2, 3), fresh=True))
    assert (layout.guesses, layout.follows) == ((), ())


def test_rows_with_most_drafts_come_first() -> None:
    """So the rows of a later guess are the first ones of an earlier guess."""
    progress = DraftProgress(4, reads_states=False)
    chunks = [chunk(slot, 4, 1, drafts, known_ids=False) for slot, drafts in enumerate((1, 3, 0, 2))]
    layout = progress.lay_out(plan(*chunks, fresh=True))
    assert [piece.slot for piece in layout.guesses] == [1, 3, 0]
    assert layout.counts == (3, 2, 1)
    slots, ends = layout.guessed
    assert (slots.tolist(), ends.tolist()) == ([1, 3, 0], [5, 5, 5])


def test_rows_as_arrays() -> None:
    table = np.array([[5, 2, 7], [1, 6, 0]], dtype=np.int32)
    rows = DraftRows.of([DraftPiece(1, 0, 2, 2), DraftPiece(0, 3, 6, 4, 2)], table, 4)
    assert rows.positions.tolist() == [0, 1, 3, 4, 5]
    assert rows.kv_slots.tolist() == [4, 5, 23, 8, 9]
    # The state before each token; the target has not been at 4 yet, and nothing is before 0.
    assert rows.before.tolist() == [4, 4, 22, 23, 23]
    assert rows.slots.tolist() == [1, 0]
    assert rows.q_starts.tolist() == [0, 2, 5]
    assert rows.kv_lens.tolist() == [2, 6]
