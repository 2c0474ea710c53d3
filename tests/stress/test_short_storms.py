"""A short run of each storm that has no test of its own: what they find must be nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from stress import cases, files, shapes
from stress.health_under_load import serving
from stress.storms.blows import BLOWS
from stress.storms.report import summary
from stress.storms.rounds import Plan, storm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", cases.CASES)
def test_a_case(name: str) -> None:
    """Streams that went on with other weights, or that waited for a disk."""
    assert cases.problems_of(name) == []


def test_damaged_files(tmp_path: Path) -> None:
    """A traceback, a crash, or memory that a file asks for and does not hold."""
    for name, kind in files.kinds(tmp_path).items():
        found = files.storm(kind, count=30, seed=46, log=tmp_path / "log")
        assert not found["wrong"], name
        assert found["found"]["refused" if name != "pages" else "read"] > 0


def test_lies_are_drawn_over_every_key() -> None:
    """A storm whose lies are all alike finds nothing."""
    draw = random.Random(0)
    told = {files.lie_in_json(b'{"a": 1, "b": {"c": [2]}}', draw) for _ in range(500)}
    assert any(b'"c": [2]' not in each and b'"b": {' in each for each in told)
    assert len(told) > 60


def test_streams_of_a_sparse_policy_survive_their_engine() -> None:
    """What is computed again selected otherwise."""
    blows = tuple(blow for blow in BLOWS if blow.name == "engine: KILL")
    options = ("--sparse-policy", "window:64:256")
    plan = Plan(None, 46, requests=12, clients=2, options=options, blows=blows, measures_memory=False)
    record = asyncio.run(storm(plan))
    assert not record.tally.problems, summary(record)


def test_health_is_watched_while_odd_shapes_are_sent(tmp_path: Path) -> None:
    """A message that repeats 30 MB, or 2,000 calls before a health check."""
    with serving(tmp_path / "log", []) as (port, pid):
        figures = asyncio.run(shapes.run(port, pid, ["logit_bias", "model_names", "many_calls"], 4.0, 0))
    for name, found in figures["shapes"].items():
        assert not found["server"]["failed"], name
        assert found["server"]["max"] < 1000 + found["trivial"]["max"], "a stall, on a machine however busy"
        assert sum(found["counts"].values()) > 0, name
