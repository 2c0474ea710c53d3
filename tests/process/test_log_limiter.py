"""What happens often is logged now and then, with its number."""

from __future__ import annotations

import logging

import pytest

from sluice.process.log_limiter import LogLimiter


def test_what_happens_between_two_messages_is_counted() -> None:
    now = 100.0
    limiter = LogLimiter(10.0, lambda: now)
    assert [limiter.count() for _ in range(4)] == [1, 0, 0, 0]
    now += 9.9
    assert limiter.count() == 0
    now += 0.1
    assert [limiter.count() for _ in range(2)] == [5, 0]
    now += 100.0
    assert limiter.count() == 2


def test_a_warning_says_how_many_it_stands_for(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    limiter = LogLimiter(10.0, lambda: now)
    logger = logging.getLogger("sluice.test")
    for moment in (100.0, 101.0, 102.0, 110.0):
        now = moment
        limiter.warn(logger, "no rank")
    assert caplog.messages == ["no rank", "no rank (3 times since the last message)"]
