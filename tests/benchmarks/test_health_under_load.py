"""The benchmark of /health, over the shadow model and for a moment."""

from __future__ import annotations

import asyncio

from benchmarks import health_under_load
from benchmarks.shadow_server import server


def test_probes_are_answered_and_loads_are_counted() -> None:
    """Failed probes that counted as fast ones, or a load that did nothing, would make any server look good."""
    with server(1.0) as (port, pid):
        figures = asyncio.run(health_under_load.run(port, pid, ["none", "idle"], 0.5))["loads"]
    assert all(load["probes"] > load["failed"] == 0 for load in figures.values())
    assert all(0 < load["p50_ms"] <= load["p99_ms"] <= load["max_ms"] for load in figures.values())
    assert figures["idle"]["counts"]["idle connections"] > 50
