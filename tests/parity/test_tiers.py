"""Over a real model, tokens do not depend on where their KV has been."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import tier_schedules
from slow import lives
from tier_schedules import Models, Totals


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return tier_schedules.made(tmp_path_factory.mktemp("model"))


@pytest.mark.filterwarnings("ignore")
@lives(4, 20, 1054)  # the last: older requests waited for what a loaded one held, and it for them
def test_random_schedules_with_a_disk_give_what_the_device_alone_gives(
    seeds: Sequence[int], models: Models, tmp_path: Path
) -> None:
    """A page loaded into the wrong place, before its bytes are there, from a damaged record, or for other tokens; a
    request that waits for ever. `tier_schedules.py` plays more of them."""
    totals = Totals()
    for seed in seeds:
        tier_schedules.play(seed, models, tmp_path, totals)
    assert totals.disk_tokens > 0
    assert totals.failed_loads > 0
    assert totals.restored > 0
    assert totals.ties <= 0.02 * totals.requests
