"""The examples in the docstrings of the public fakes run as they stand."""

from __future__ import annotations

import doctest

import pytest

from sluice.testing import faults, link, shadow, tiers


@pytest.mark.parametrize("module", [faults, link, shadow, tiers])
def test_examples_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
