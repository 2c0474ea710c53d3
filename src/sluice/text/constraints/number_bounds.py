"""Bounds of numbers that llguidance (1.9) does not hold to as they are written.

A whole number that is excluded as one bound is accepted all the same if the other bound is less than 1 away from it:
0 for a number above 0 and at most 0.5. Such a bound is moved inwards a little, which loses a few values and admits no
wrong one.
"""

from __future__ import annotations

import math
from typing import Any

SMALL = 1e-6
"""By how much a bound is moved, unless the range is smaller."""


def move_excluded_bounds(node: dict[str, Any]) -> None:
    """Move those bounds of a schema that are excluded whole numbers."""
    if node.get("type") == "integer":
        return
    low, high = _number(node, "exclusiveMinimum"), _number(node, "exclusiveMaximum")
    least, most = _number(node, "minimum"), _number(node, "maximum")
    top = min(math.inf if high is None else high, math.inf if most is None else most)
    bottom = max(-math.inf if low is None else low, -math.inf if least is None else least)
    if low is not None and low == bottom and _is_near(low, top - low):
        node["exclusiveMinimum"] = low + min(SMALL, (top - low) / 16)
    if high is not None and high == top and _is_near(high, high - bottom):
        node["exclusiveMaximum"] = high - min(SMALL, (high - bottom) / 16)


def _number(node: dict[str, Any], keyword: str) -> float | None:
    value = node.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_near(bound: float, distance: float) -> bool:
    return float(bound).is_integer() and 0 < distance < 1
