"""Which requests are suspects, when each enters an engine, and which is to blame."""

from __future__ import annotations

from sluice.process.quarantine import Quarantine


def holding(*request_ids: int) -> Quarantine:
    quarantine = Quarantine()
    for request_id in request_ids:
        quarantine.add(request_id)
    return quarantine


def test_after_one_death_all_go_on_together() -> None:
    """Most deaths are no request's fault, and one at a time is slow for every stream."""
    quarantine = holding(1, 2, 3)
    assert list(quarantine.admit()) == [1, 2, 3]
    assert quarantine.engine_died({2, 3}) is None
    quarantine.add(4)
    assert list(quarantine.admit()) == [1, 2, 3, 4]
    assert list(quarantine.admit()) == []


def died_twice() -> Quarantine:
    """Return a quarantine of four requests, two of them in flight when two engines died with no token in between."""
    quarantine = holding(1, 2, 3, 4)
    for _ in range(2):
        quarantine.admit()
        assert quarantine.engine_died({2, 3}) is None
    return quarantine


def test_after_two_deaths_without_a_token_the_requests_in_flight_enter_one_at_a_time_before_the_rest() -> None:
    quarantine = died_twice()
    assert list(quarantine.admit()) == [2]
    assert list(quarantine.admit()) == []
    quarantine.got_token(2)
    assert list(quarantine.admit()) == [3]
    quarantine.add(5)
    assert list(quarantine.admit()) == []
    quarantine.remove(3)
    assert list(quarantine.admit()) == [1, 4, 5]


def test_a_request_that_was_alone_when_an_engine_died_is_to_blame() -> None:
    quarantine = died_twice()
    assert list(quarantine.admit()) == [2]
    assert quarantine.engine_died({2}) == 2
    quarantine.remove(2)
    assert list(quarantine.admit()) == [3]


def test_a_suspect_that_was_not_alone_is_tried_alone_first() -> None:
    """The one before it had got a token and might be to blame."""
    quarantine = died_twice()
    quarantine.admit()
    quarantine.got_token(2)
    assert list(quarantine.admit()) == [3]
    assert quarantine.engine_died({2, 3}) is None
    assert list(quarantine.admit()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_tokens_of_other_requests_do_not_clear_a_suspect() -> None:
    """A fatal prompt may be the last in the queue: in each engine the others get a few tokens before it is computed.
    There is always a token between two deaths then, until the restarts are used up."""
    quarantine = holding(1, 2, 3)
    for _ in range(2):
        quarantine.admit()
        quarantine.got_token(1)
        assert quarantine.engine_died({1, 3}) is None
    assert list(quarantine.admit()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_a_token_of_its_own_clears_a_suspect() -> None:
    quarantine = holding(1, 2)
    for _ in range(5):
        assert list(quarantine.admit()) == [1, 2]
        quarantine.got_token(1)
        quarantine.got_token(2)
        assert quarantine.engine_died({1, 2}) is None


def test_a_death_before_any_request_makes_no_suspect() -> None:
    """The engine may be killed many times while it loads."""
    quarantine = holding(1, 2)
    quarantine.admit()
    quarantine.engine_died({1, 2})
    for _ in range(3):
        assert quarantine.engine_died(()) is None
    assert list(quarantine.admit()) == [1, 2]


def test_with_no_request_known_in_flight_all_inside_are_suspects() -> None:
    """An engine that dies while it reads a message or plans has launched no step. A lone request is to blame only the
    second time: the engine may not have read it."""
    quarantine = holding(1, 2)
    for _ in range(2):
        quarantine.admit()
        quarantine.engine_died(())
    assert list(quarantine.admit()) == [1]
    assert quarantine.engine_died(()) is None
    assert list(quarantine.admit()) == [1]
    assert quarantine.engine_died(()) == 1


def test_a_removed_request_is_no_suspect() -> None:
    """Its client left while it waited for its trial, or on trial; no other request may wait for it."""
    quarantine = died_twice()
    quarantine.remove(3)
    assert list(quarantine.admit()) == [2]
    quarantine.remove(2)
    assert list(quarantine.admit()) == [1, 4]


def test_two_deaths_in_a_row_make_suspects_of_the_requests_in_flight_in_the_second() -> None:
    """Others were in flight at the first: with no token since, any request in flight now may kill the next engine."""
    quarantine = holding(1, 2, 3)
    quarantine.admit()
    quarantine.engine_died({1})
    quarantine.admit()
    quarantine.engine_died({2})
    assert list(quarantine.admit()) == [2]


def test_a_token_for_any_request_separates_two_deaths() -> None:
    quarantine = holding(1, 2, 3)
    quarantine.admit()
    quarantine.engine_died({1})
    quarantine.admit()
    quarantine.got_token(3)
    quarantine.engine_died({2})
    assert list(quarantine.admit()) == [1, 2, 3]


def test_deaths_after_a_token_count_from_there() -> None:
    quarantine = holding(1, 2)
    quarantine.admit()
    quarantine.engine_died({1})
    for _ in range(2):
        quarantine.admit()
        quarantine.got_token(1)
        quarantine.got_token(2)
    for _ in range(2):
        assert list(quarantine.admit()) in ([], [1, 2])
        quarantine.got_token(2)
        quarantine.engine_died({1})
    assert list(quarantine.admit()) == [1]


def test_the_death_of_an_idle_engine_is_not_the_first_of_two() -> None:
    quarantine = holding()
    quarantine.engine_died(())
    quarantine.add(1)
    quarantine.add(2)
    quarantine.admit()
    quarantine.engine_died({1})
    assert list(quarantine.admit()) == [1, 2]


def test_a_request_that_has_ended_never_enters_again() -> None:
    """Nor does it count as company for a request on trial."""
    quarantine = holding(1, 2)
    quarantine.admit()
    quarantine.remove(1)
    quarantine.engine_died({2})
    assert list(quarantine.admit()) == [2]
    quarantine.engine_died({2})
    assert list(quarantine.admit()) == [2]
    quarantine.add(3)
    quarantine.got_token(2)
    quarantine.admit()
    quarantine.remove(2)
    for _ in range(2):
        quarantine.engine_died({3})
        assert list(quarantine.admit()) == [3]
    assert quarantine.engine_died({3}) == 3


def test_a_removed_request_is_no_company() -> None:
    quarantine = died_twice()
    assert list(quarantine.admit()) == [2]
    quarantine.remove(2)
    assert list(quarantine.admit()) == [3]
    assert quarantine.engine_died({3}) == 3
