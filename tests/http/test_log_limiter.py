"""What happens often is logged now and then, with its number."""

from __future__ import annotations

from sluice.http.log_limiter import LogLimiter


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
