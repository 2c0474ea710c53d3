"""Clients that leave by the socket, at a server in processes of its own: a smaller `disconnect_storm.py`."""

from __future__ import annotations

import pytest

from stress.disconnect_storm import is_good, weather

pytestmark = pytest.mark.slow


def test_nothing_is_left_of_those_who_left() -> None:
    """A connection that is reset, or cut in the middle of a body, is noticed by other code than one that ends."""
    figures = weather(60, 3, 1.0)
    assert is_good(figures), figures
    assert sum(figures["left"].values()) == 60
    assert figures["left"].keys() == {"was being answered", "was waiting", "cut its request"}, figures
    assert figures["most_requests_at_once"] > 5, figures
