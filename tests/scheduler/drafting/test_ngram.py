"""What is guessed by n-grams."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import pytest

from sluice.scheduler.drafting.ngram import LEAD, NgramGuesser
from sluice.scheduler.drafting.ngram_index import CATCH_UP, CHAIN, NO_MATCH, Match, NgramIndex
from sluice.scheduler.request import Request
from sluice.testing import resolved
from sluice.types import NgramLimits, Submit


def request_of(
    prompt: Sequence[int], output: Sequence[int] = (), *, request_id: int = 1, extra_key: str = ""
) -> Request:
    submit = Submit(request_id, tuple(prompt), resolved(1000), extra_key=extra_key, output_ids=tuple(output))
    return Request(submit)


def slow_match(text: Sequence[int], n: int, longest: int) -> Match:
    """The place that has most in common with the end of a text, by looking at every place; the latest of several."""
    best = NO_MATCH
    for place in range(n, len(text)):
        length = 0
        while length < min(longest, place) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length >= max(n, best.length):
            best = Match(place, length)
    return best


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_longest_match_is_found_while_a_text_grows(n: int) -> None:
    """A place was compared only with the tokens that the best place before had in common."""
    for seed in range(10):
        source = random.Random(100 * seed + n)
        text = array("i")
        index = NgramIndex(text, n, 6)
        while len(text) < CHAIN:
            text.extend(source.randrange(3) for _ in range(source.randrange(1, 4)))
            index.catch_up()
            assert index.find(text) == slow_match(text, n, 6)


def test_the_beginning_of_a_text_is_no_ngram_with_tokens_before_it() -> None:
    """The token before the first one was taken to be 0."""
    text = array("i", [7, 1, 2, 0, 7])
    index = NgramIndex(text, 2, 4)
    index.catch_up()
    assert index.find(text) == NO_MATCH


def test_a_long_text_is_indexed_over_several_calls() -> None:
    """A long prompt was indexed in one step, for which all streams waited."""
    text = array("i", [*range(10, 20), *range(100, 100 + 2 * CATCH_UP), *range(10, 16)])
    index = NgramIndex(text, 2, 12)
    index.catch_up()
    assert index.find(text) == Match(6, 6)
    late = array("i", [50, 51, 52])
    late.extend(text[CATCH_UP + 100 : CATCH_UP + 104])
    assert index.find(late) == NO_MATCH
    index.catch_up()
    assert index.find(late) == Match(CATCH_UP + 104, 4)


def test_what_followed_in_the_request_is_guessed() -> None:
    guesser = NgramGuesser()
    request = request_of([1, 2, 3, 4, 5, 6, 7, 8, 9], [2, 3])
    assert guesser.propose(request, 4) == ((4, 5, 6, 7), 2)
    request.tokens.append(4)
    assert guesser.propose(request, 2) == ((5, 6), 3)
    request.tokens.append(60)
    assert guesser.propose(request, 4) == ((), 0)


def test_a_text_that_repeats_itself_goes_on_as_it_did() -> None:
    """As many tokens were guessed as its period has."""
    request = request_of([9, 1, 2, 3, 1, 2, 3])
    assert NgramGuesser().propose(request, 8).token_ids == (1, 2, 3, 1, 2, 3, 1, 2)


def test_longer_matches_are_preferred_to_later_ones() -> None:
    request = request_of([1, 2, 3, 4, 9, 3, 4, 8, 1, 2, 3, 4])
    assert NgramGuesser().propose(request, 1) == ((9,), 4)


def test_answers_are_guessed_from_others_of_the_same_tenant() -> None:
    guesser = NgramGuesser()
    answer = [5, 6, 7, 8, 9, 10, 11]
    guesser.ended(request_of([1, 2, 3], answer, extra_key="a"))
    again = request_of([40, 2, 3], [5], request_id=2, extra_key="a")
    assert guesser.propose(again, 4) == ((6, 7, 8, 9), 3)
    other = request_of([40, 2, 3], [5], request_id=3, extra_key="b")
    assert guesser.propose(other, 4) == ((), 0), "what one tenant was answered is seen by no other"
    guesser.flush()
    assert guesser.num_answered == 0
    assert guesser.propose(again, 4) == ((), 0)


def test_an_answer_ends_where_it_ends() -> None:
    """The beginning of one answer was guessed behind the end of another."""
    guesser = NgramGuesser()
    guesser.ended(request_of([1, 2], [5, 6, 7]))
    guesser.ended(request_of([3, 4], [8, 9], request_id=2))
    assert guesser.propose(request_of([5, 6], request_id=3), 4).token_ids == (7,)
    assert guesser.propose(request_of([6, 7], request_id=4), 4).token_ids == ()


def test_the_longer_match_wins_and_the_request_itself_of_equal_ones() -> None:
    guesser = NgramGuesser()
    guesser.ended(request_of([1, 2], [3, 4, 5, 6], request_id=9))
    assert guesser.propose(request_of([3, 4, 7, 8, 3, 4]), 2).token_ids == (7, 8)
    assert guesser.propose(request_of([3, 4, 7, 2, 3, 4], request_id=2), 2).token_ids == (5, 6)


def test_what_a_prompt_ends_with_leads_to_its_answer() -> None:
    """The same question again had its first token guessed by nothing."""
    guesser = NgramGuesser()
    prompt = [*range(100, 100 + 2 * LEAD)]
    guesser.ended(request_of(prompt, [5, 6, 7]))
    assert guesser.propose(request_of(prompt, request_id=2), 3).token_ids == (5, 6, 7)
    first = request_of([*prompt[:LEAD]], request_id=3)
    assert guesser.propose(first, 3) == ((), 0), "the rest of a prompt is not what was answered"


def test_a_request_without_an_answer_leaves_nothing() -> None:
    guesser = NgramGuesser()
    guesser.propose(request_of([1, 2, 3]), 2)
    assert guesser.num_requests == 1
    guesser.ended(request_of([1, 2, 3]))
    assert (guesser.num_requests, guesser.num_answered) == (0, 0)


def test_answers_are_bounded_and_the_latest_are_kept() -> None:
    guesser = NgramGuesser(NgramLimits(capacity=100))
    for number in range(50):
        start = 1000 + 10 * number
        guesser.ended(request_of([1], range(start, start + 9), request_id=number, extra_key=f"tenant {number % 3}"))
        assert guesser.num_answered <= 100
        seen = guesser.propose(request_of([start, start + 1], request_id=100, extra_key=f"tenant {number % 3}"), 2)
        assert seen.token_ids == (start + 2, start + 3)
    old = request_of([1000, 1001], request_id=101, extra_key="tenant 0")
    assert guesser.propose(old, 2).token_ids == ()


def test_an_answer_longer_than_what_is_kept_leaves_its_end() -> None:
    guesser = NgramGuesser(NgramLimits(capacity=100))
    guesser.ended(request_of([1], range(1000, 1300)))
    assert guesser.num_answered <= 50
    assert guesser.propose(request_of([1290, 1291], request_id=2), 2).token_ids == (1292, 1293)


def test_without_a_capacity_no_answer_is_kept() -> None:
    guesser = NgramGuesser(NgramLimits(capacity=0))
    guesser.ended(request_of([1, 2], [3, 4, 5]))
    assert guesser.num_answered == 0
    assert guesser.propose(request_of([3, 4], request_id=2), 2).token_ids == ()


def test_matches_are_as_short_and_as_long_as_the_limits_say() -> None:
    request = request_of([1, 2, 3, 4, 5, 9, 8, 3, 4, 5])
    assert NgramGuesser(NgramLimits(shortest=3)).propose(request, 1) == ((9,), 3)
    assert NgramGuesser(NgramLimits(shortest=4)).propose(request, 1) == ((), 0)
    assert NgramGuesser(NgramLimits(shortest=1, longest=2)).propose(request, 1) == ((9,), 2)


def test_a_request_gives_up_overlap_while_its_prompt_is_indexed_and_where_its_end_occurred() -> None:
    """A long prompt was indexed no further once a step found nothing in its beginning."""
    guesser = NgramGuesser()
    request = request_of([*range(3 * CATCH_UP)])
    hopes = []
    while guesser.hopes(request):
        guesser.begin_step()
        hopes.append(guesser.propose(request, 1))
        assert len(hopes) < 10
    assert len(hopes) == 2
    guesser.begin_step()
    guesser.propose(request, 1)
    request.tokens.extend([5, 6])
    assert guesser.hopes(request)
    request.tokens.append(1)
    assert not guesser.hopes(request)
    guesser.ended(request_of([0], [6, 1, 2], request_id=2))
    guesser.begin_step()
    guesser.propose(request_of([0], request_id=3), 1)
    assert guesser.hopes(request), "in an answer"


def test_one_step_indexes_no_more_for_many_requests_than_for_one() -> None:
    """64 prompts of 8,000 tokens that came together took 20 ms of each of eight steps."""
    guesser = NgramGuesser()
    requests = [request_of([*range(CATCH_UP), 1, 2], request_id=each) for each in range(3)]
    steps = 0
    while not all(guesser.propose(request, 1).token_ids for request in requests):
        guesser.begin_step()
        steps += 1
    assert steps == 2
