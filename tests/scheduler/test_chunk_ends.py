"""The last chunk of a prompt: a few tokens more than the chunk size do not wait for a step of their own."""

from __future__ import annotations

import pytest

from support import queue, shape, shapes_of, steps_of
from worlds import Bench, World, limits_of

CHUNK, PAGE = 128, 32


def bench_of(page_size: int = PAGE, **limits: object) -> Bench:
    world = World(limits_of(**{"chunk": CHUNK, "running": 8, **limits}), num_pages=400, page_size=page_size)
    return Bench.of(world)


def lengths_of(bench: Bench, request_id: int) -> list[int]:
    """Step until the prompt is computed. Returns the lengths of its chunks."""
    lengths: list[int] = []
    while True:
        (plan,) = steps_of(bench)
        for chunk in plan.chunks:
            if chunk.request_id == request_id:
                lengths.append(chunk.length)
                if chunk.samples:
                    return lengths


@pytest.mark.parametrize("partial", [1, 4])
@pytest.mark.parametrize("length", [CHUNK + 1, CHUNK + 2, CHUNK + PAGE - 1, CHUNK + PAGE])
def test_up_to_a_page_more_than_a_chunk_has_its_first_token_after_one_step(partial: int, length: int) -> None:
    """130 tokens took two steps, the second one for two tokens."""
    bench = bench_of(batch=CHUNK + PAGE, max_partial_prefills=partial)
    queue(bench, 0, length)
    assert lengths_of(bench, 0) == [length]


@pytest.mark.parametrize("partial", [1, 4])
def test_more_than_a_page_more_is_cut(partial: int) -> None:
    bench = bench_of(batch=500, max_partial_prefills=partial)
    queue(bench, 0, CHUNK + PAGE + 1)
    assert lengths_of(bench, 0) == [CHUNK, PAGE + 1]


def test_a_prompt_that_is_embedded_ends_in_one_step_as_well() -> None:
    """Its last chunk samples nothing."""
    bench = bench_of(batch=500)
    queue(bench, 0, CHUNK + 2, embeds=True)
    assert shapes_of(bench) == [[(0, 0, CHUNK + 2)]]


def test_the_end_of_a_longer_prompt_saves_a_step_too() -> None:
    bench = bench_of(batch=CHUNK + PAGE)
    queue(bench, 0, 3 * CHUNK + 5)
    assert lengths_of(bench, 0) == [CHUNK, CHUNK, CHUNK + 5]


@pytest.mark.parametrize(
    "limits",
    [
        {"batch": CHUNK + 1},
        {"batch": 500, "max_prefill_tokens": CHUNK + 1},
        {"batch": 500, "long_prefill_token_threshold": CHUNK + 1},
    ],
    ids=["tokens of the batch", "tokens of prefill", "tokens of one prompt"],
)
@pytest.mark.parametrize("partial", [1, 4])
def test_no_other_budget_is_exceeded(limits: dict[str, int], partial: int) -> None:
    bench = bench_of(**limits, max_partial_prefills=partial)
    queue(bench, 0, CHUNK + 2)
    assert lengths_of(bench, 0) == [CHUNK, 2]
    bench = bench_of(**limits, max_partial_prefills=partial)
    queue(bench, 0, CHUNK + 1)
    assert lengths_of(bench, 0) == [CHUNK + 1]


def test_decodes_come_off_the_batch_first() -> None:
    """Two streams run, so 130 tokens of the batch leave 128 to the prompt."""
    bench = bench_of(batch=CHUNK + 2)
    for request_id in range(2):
        queue(bench, request_id, 1)
    steps_of(bench)
    queue(bench, 2, CHUNK + 1)
    assert shapes_of(bench) == [[(0, 1, 1), (1, 1, 1), (2, 0, CHUNK)]]


def test_a_prompt_that_has_not_begun_waits_for_the_next_step() -> None:
    """Cut to whole pages it has nothing in this step, so it leaves no tail. Else every step would take a page more."""
    bench = bench_of(batch=500)
    queue(bench, 0, CHUNK - 10)
    queue(bench, 1, 20)
    assert shapes_of(bench) == [[(0, 0, CHUNK - 10)]]


def test_one_prompt_of_a_step_exceeds_its_chunk_size() -> None:
    bench = bench_of(batch=500)
    queue(bench, 0, 64)
    queue(bench, 1, 70)
    queue(bench, 2, 2)
    assert shapes_of(bench) == [[(0, 0, 64), (1, 0, 70)]]


def test_what_is_lengthened_may_end_over_the_chunk_size() -> None:
    """The first prompt has half of the step; what a short one without a slot leaves is two tokens too few."""
    bench = bench_of(batch=500, running=1, max_partial_prefills=4)
    queue(bench, 0, CHUNK + 2)
    queue(bench, 1, 30)
    (plan,) = steps_of(bench)
    assert shape(plan) == [(0, 0, CHUNK + 2)]


def test_a_last_chunk_that_is_cut_for_want_of_pages_keeps_to_the_chunk_size() -> None:
    """11 tokens were to be the last chunk, over a chunk size of 7; there were pages for 8, which were taken."""
    bench = Bench.of(World(limits_of(chunk=7, running=4, batch=30), num_pages=6, page_size=4))
    queue(bench, 0, 7, max_tokens=8)
    steps_of(bench)
    queue(bench, 1, 15, max_tokens=1)
    assert shapes_of(bench, 2) == [[(0, 7, 1), (1, 0, 4)], [(0, 8, 1), (1, 4, 4)]]


def test_a_last_chunk_for_which_there_are_just_pages_enough_is_whole() -> None:
    bench = Bench.of(World(limits_of(chunk=7, running=4, batch=30), num_pages=5, page_size=4))
    queue(bench, 0, 20, embeds=True)
    assert shapes_of(bench, 4) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 4)], [(0, 12, 8)]]
