"""Numbers of a schema that llguidance (1.9) does not keep as they are written.

It reads every number as a double, often one unit in the last place off, and writes what it has then. So the integer
2**53 + 1 becomes 2**53, and one double of sixteen digits or more in nine becomes its neighbour
(`findings/llguidance_numbers.sh`). What a single multiplication or division of doubles reads exactly is kept for
certain (W. D. Clinger, How to read floating point numbers accurately, 1990); of other doubles it is asked. Bounds are
integers of 64 bits there: it makes no grammar of those beyond 1e18, which schemas of number types such as `float` have.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher, LLTokenizer

EXACT = 1 << 53
"""Integers up to this one are kept, and so are their negatives."""
DIGITS = 15
"""Most digits of a number that is kept for certain."""
POWERS = 22
"""Powers of ten up to this one are doubles, so a number of few digits times or over one of them is kept."""
FARTHEST = 1e18
"""The farthest bound of a number of which a grammar is made."""
UPPER = ("maximum", "exclusiveMaximum")
LOWER = ("minimum", "exclusiveMinimum")
_BYTES = LLTokenizer("byte")


def inexact_number(value: Any) -> int | float | None:
    """Return a number within a JSON value that an answer would not have exactly; None if there is none."""
    return next((number for number in _numbers(value) if not _is_kept(number)), None)


def far_bounds(node: dict[str, Any]) -> list[str]:
    """Move the bounds of integers inwards to what is kept exactly, and remove bounds that every double is within.

    Returns:
        The keywords of bounds that are left and of which no grammar can be made.
    """
    types = node.get("type", "number")
    kinds = {types} if isinstance(types, str) else set(types) if isinstance(types, list) else set()
    is_integer = "integer" in kinds and "number" not in kinds
    left = []
    for keyword, sign in (*((each, 1) for each in UPPER), *((each, -1) for each in LOWER)):
        bound = node.get(keyword)
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            continue
        if is_integer and bound * sign > EXACT:
            node[keyword] = EXACT * sign
        elif not is_integer and bound * sign >= sys.float_info.max:
            del node[keyword]
        elif abs(bound) > (EXACT if is_integer else FARTHEST):
            left.append(keyword)
    return left


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _is_kept(number: int | float) -> bool:
    if isinstance(number, int):
        return abs(number) <= EXACT
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    return (len(digits) <= DIGITS and abs(exponent) <= POWERS) or _forced(number) == number


def _forced(number: float) -> float:
    """Return the number that llguidance forces an answer to be, in place of a constant."""
    matcher = LLMatcher(_BYTES, LLMatcher.grammar_from_json_schema(json.dumps({"const": number})), log_level=0)
    return float(bytes(matcher.compute_ff_tokens()))
