"""Clients that leave by the socket, at a server in processes of its own: `benchmarks/disconnect_storm.py`, smaller."""

from __future__ import annotations

from benchmarks.disconnect_storm import is_good, plans_of, weather


def test_nothing_is_left_of_those_who_left() -> None:
    """A connection that is reset, or cut in the middle of a body, is noticed by other code than one that ends."""
    figures = weather(60, 3, 1.0)
    assert is_good(figures), figures
    assert sum(figures["left"].values()) == 60
    assert figures["left"].keys() == {"was being answered", "was waiting", "cut its request"}, figures
    assert figures["most_requests_at_once"] > 5, figures


def test_a_storm_is_its_seeds() -> None:
    """Or a storm that found something could not be had again."""
    assert plans_of(50, 3, 1.0) == plans_of(50, 3, 1.0) != plans_of(50, 4, 1.0)
