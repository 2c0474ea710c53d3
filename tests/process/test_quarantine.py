"""Who is suspected, who is let in when, and who is guilty."""

from __future__ import annotations

from sluice.process.quarantine import Quarantine


def opened(*request_ids: int) -> Quarantine:
    quarantine = Quarantine()
    for request_id in request_ids:
        quarantine.opened(request_id)
    return quarantine


def test_after_one_death_all_go_on_together() -> None:
    """Most deaths are nobody's fault; going one by one would cost every stream its company."""
    quarantine = opened(1, 2, 3)
    assert list(quarantine.let_in()) == [1, 2, 3]
    assert quarantine.engine_died({2, 3}) is None
    quarantine.opened(4)
    assert list(quarantine.let_in()) == [1, 2, 3, 4]
    assert list(quarantine.let_in()) == []


def died_twice() -> Quarantine:
    """Four requests, two of them in flight when two engines died with no token in between."""
    quarantine = opened(1, 2, 3, 4)
    for _ in range(2):
        quarantine.let_in()
        assert quarantine.engine_died({2, 3}) is None
    return quarantine


def test_after_two_without_a_token_those_in_flight_come_one_by_one_and_the_rest_after_them() -> None:
    quarantine = died_twice()
    assert list(quarantine.let_in()) == [2]
    assert list(quarantine.let_in()) == []
    quarantine.got_token(2)
    assert list(quarantine.let_in()) == [3]
    quarantine.opened(5)
    assert list(quarantine.let_in()) == []
    quarantine.closed(3)
    assert list(quarantine.let_in()) == [1, 4, 5]


def test_one_that_an_engine_dies_of_alone_is_guilty() -> None:
    quarantine = died_twice()
    assert list(quarantine.let_in()) == [2]
    assert quarantine.engine_died({2}) == 2
    quarantine.closed(2)
    assert list(quarantine.let_in()) == [3]


def test_one_that_was_not_alone_is_tried_alone_first() -> None:
    """The one before it had got a token and might have done it."""
    quarantine = died_twice()
    quarantine.let_in()
    quarantine.got_token(2)
    assert list(quarantine.let_in()) == [3]
    assert quarantine.engine_died({2, 3}) is None
    assert list(quarantine.let_in()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_tokens_of_others_do_not_acquit() -> None:
    """A poisonous prompt at the end of the queue: with each engine the others get a few tokens before it is read, so
    that there is always a token between two deaths, and the restarts are used up."""
    quarantine = opened(1, 2, 3)
    for _ in range(2):
        quarantine.let_in()
        quarantine.got_token(1)
        assert quarantine.engine_died({1, 3}) is None
    assert list(quarantine.let_in()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_a_token_of_its_own_acquits() -> None:
    quarantine = opened(1, 2)
    for _ in range(5):
        assert list(quarantine.let_in()) == [1, 2]
        quarantine.got_token(1)
        quarantine.got_token(2)
        assert quarantine.engine_died({1, 2}) is None


def test_a_death_before_any_work_accuses_nobody() -> None:
    """An engine killed while it loads, however often."""
    quarantine = opened(1, 2)
    quarantine.let_in()
    quarantine.engine_died({1, 2})
    for _ in range(3):
        assert quarantine.engine_died(()) is None
    assert list(quarantine.let_in()) == [1, 2]


def test_with_nobody_known_in_flight_everybody_inside_is_suspected() -> None:
    """An engine that dies of a message, or while it plans, has launched nothing; and one alone there is guilty only
    the second time: it may not even have been read."""
    quarantine = opened(1, 2)
    for _ in range(2):
        quarantine.let_in()
        quarantine.engine_died(())
    assert list(quarantine.let_in()) == [1]
    assert quarantine.engine_died(()) is None
    assert list(quarantine.let_in()) == [1]
    assert quarantine.engine_died(()) == 1


def test_one_that_leaves_is_no_suspect() -> None:
    """Its reader left while it waited to be tried, or on trial; nobody must wait for it."""
    quarantine = died_twice()
    quarantine.closed(3)
    assert list(quarantine.let_in()) == [2]
    quarantine.closed(2)
    assert list(quarantine.let_in()) == [1, 4]


def test_two_deaths_in_a_row_accuse_whoever_was_in_flight_in_the_second() -> None:
    """Others were in flight in the first: nobody got a token, so any of those now there may do it again."""
    quarantine = opened(1, 2, 3)
    quarantine.let_in()
    quarantine.engine_died({1})
    quarantine.let_in()
    quarantine.engine_died({2})
    assert list(quarantine.let_in()) == [2]


def test_a_token_for_anybody_parts_two_deaths() -> None:
    quarantine = opened(1, 2, 3)
    quarantine.let_in()
    quarantine.engine_died({1})
    quarantine.let_in()
    quarantine.got_token(3)
    quarantine.engine_died({2})
    assert list(quarantine.let_in()) == [1, 2, 3]


def test_deaths_after_a_token_count_from_there() -> None:
    quarantine = opened(1, 2)
    quarantine.let_in()
    quarantine.engine_died({1})
    for _ in range(2):
        quarantine.let_in()
        quarantine.got_token(1)
        quarantine.got_token(2)
    for _ in range(2):
        assert list(quarantine.let_in()) in ([], [1, 2])
        quarantine.got_token(2)
        quarantine.engine_died({1})
    assert list(quarantine.let_in()) == [1]


def test_an_idle_death_is_not_the_first_of_two() -> None:
    quarantine = opened()
    quarantine.engine_died(())
    quarantine.opened(1)
    quarantine.opened(2)
    quarantine.let_in()
    quarantine.engine_died({1})
    assert list(quarantine.let_in()) == [1, 2]


def test_one_that_has_ended_never_comes_back() -> None:
    """It is neither let in again nor company for one on trial."""
    quarantine = opened(1, 2)
    quarantine.let_in()
    quarantine.closed(1)
    quarantine.engine_died({2})
    assert list(quarantine.let_in()) == [2]
    quarantine.engine_died({2})
    assert list(quarantine.let_in()) == [2]
    quarantine.opened(3)
    quarantine.got_token(2)
    quarantine.let_in()
    quarantine.closed(2)
    for _ in range(2):
        quarantine.engine_died({3})
        assert list(quarantine.let_in()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_one_that_has_left_was_no_company() -> None:
    quarantine = died_twice()
    assert list(quarantine.let_in()) == [2]
    quarantine.closed(2)
    assert list(quarantine.let_in()) == [3]
    assert quarantine.engine_died({3}) == 3
