"""Random lives of engines in which contexts may be longer than the device, under every law."""

from __future__ import annotations

import pytest

from scenarios import random_offload_scenario, run

EACH = 20


@pytest.mark.parametrize("first", range(0, 120, EACH))
def test_offloaded_beside_ordinary_requests(first: int) -> None:
    """Aborts, retractions, lost devices, reads and stores that fail: a stale page, a place on the device that is
    overwritten too early, a page that is looked at before it was stored or a unit of work that is skipped changes what
    comes out, or breaks a law."""
    for seed in range(first, first + EACH):
        run(random_offload_scenario(seed))
