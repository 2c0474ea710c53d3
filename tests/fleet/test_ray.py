"""A fleet on Ray itself: skipped where Ray is not installed."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest

from stress.fleets import fronts
from stress.fleets.kills import survive
from stress.fleets.process import free_port, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]


def test_killed_replicas_lose_no_token() -> None:
    """24 streams, greedy and seeded, and five kills of the replicas that serve them."""
    assert asyncio.run(survive(streams=24, tokens=100, kills=5)) == []


def test_streams_go_on_after_their_ingress_and_proxy_were_killed() -> None:
    """Both are cut off from all their clients, who ask for the rest at what Ray starts in their places."""
    result = asyncio.run(fronts.survive(streams=8, tokens=100))
    assert not result["problems"]
    assert min(result["cut"].values()) > 0


def test_what_cannot_be_honoured_is_refused() -> None:
    refused = run_command(["--replicas", "999", "--threads", "1", "--port", str(free_port())], 120)
    assert refused.returncode == 2
    assert "--replicas 999 is more than fit: each takes 1 CPU of one machine, and free are" in refused.stderr
    refused = run_command(["--address", "127.0.0.1:1"], 60)
    assert refused.returncode == 2
    assert "Ray cannot be reached at --address 127.0.0.1:1" in refused.stderr
