"""What `make test` leaves to `make test-all`: cases of a grid, random lives, and examples that Hypothesis draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

ALL_EXAMPLES = 100
"""Examples of a test that names no number, in `make test-all`."""


def slow(*values: Any) -> ParameterSet:
    """Return a case that is marked slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def products(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise by all products of the values; those are slow that need not be for each value to occur once."""
    most = max(map(len, values.values()))
    few = [tuple(choices[number % len(choices)] for choices in values.values()) for number in range(most)]
    cases = [case if case in few else slow(*case) for case in product(*values.values())]
    return pytest.mark.parametrize(",".join(values), cases, ids=lambda value: getattr(value, "__name__", str(value)))


def lives(few: int, every: int, *rare: int) -> pytest.MarkDecorator:
    """Parametrise by `seeds`: those of the first few random lives and of some that meet what is rare; and, marked slow,
    those of all, which must meet as much."""
    return pytest.mark.parametrize("seeds", [[*range(few), *rare], slow(range(every))], ids=["few", "all"])


def examples(count: int) -> settings:
    """Return settings of so many examples, and of a third of them in `make test`."""
    return settings(max_examples=max(1, count * settings.default.max_examples // ALL_EXAMPLES))
