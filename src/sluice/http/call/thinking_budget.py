"""How many tokens a client lets a model think, by the names that its API or another server has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.http.base.body import kind_of
from sluice.http.base.errors import bad_request, require


def one_budget(given: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the budget that a body gives, and the field that gives it.

    Args:
        given: field, as a path -> its value; None if the body lacks it.

    Raises:
        ApiError: 400, a budget below 0 or of another type, or two that differ.
    """
    found = {name: _checked(name, value) for name, value in given.items() if value is not None}
    if len(set(found.values())) > 1:
        (name, budget), (other, second) = list(found.items())[:2]
        raise bad_request(f"{name} {budget} and {other} {second} contradict each other; send one of them", param=other)
    return next(((budget, name) for name, budget in found.items()), (None, "thinking_token_budget"))


def _checked(name: str, value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    require(is_count, f"{name} must be a number of tokens, got {kind_of(value)}", param=name)
    require(value >= 0, f"{name} must be at least 0, got {value}; leave it out for no limit", param=name)
    return int(value)
