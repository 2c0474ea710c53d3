"""`GET /metrics`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client.metrics_core import Metric

from sluice.engine.messages import Stats
from sluice.http.backend import Backend, Service
from sluice.http.exposition import CONTENT_TYPE, cache_config, engine_up, of_engine, of_recovery, of_requests, render
from sluice.http.metrics import Metrics
from sluice.process.client import EngineClient, EngineGone

PATIENCE_SECONDS = 0.5
"""How long a scrape waits for the engine to end its step; Prometheus gives up after 10 s, and then knows nothing."""


def add_metrics(app: FastAPI, backend: Backend, metrics: Metrics, *, patience: float = PATIENCE_SECONDS) -> None:
    """Serve the page.

    Args:
        patience: seconds until the engine's numbers are those of the last time it was asked.
    """

    @app.get("/metrics")
    async def page() -> Response:
        service = backend.service() if backend.has_service else None
        stats = None if service is None else await _stats(service.client, patience)
        families = [
            engine_up(metrics, service is not None and backend.engine.is_serving),
            *of_recovery(metrics, backend.engine.stats),
            *_families(metrics, service, stats),
        ]
        return Response(render(families), media_type=CONTENT_TYPE)


async def _stats(client: EngineClient, patience: float) -> Stats | None:
    """How the engine stands, or stood when it last said so."""
    try:
        return await asyncio.wait_for(client.stats(), patience)
    except TimeoutError:
        return client.latest
    except EngineGone:
        return None


def _families(metrics: Metrics, service: Service | None, stats: Stats | None) -> Iterator[Metric]:
    yield from of_requests(metrics)
    if stats is None or service is None:
        return
    yield from of_engine(metrics, stats)
    (page_size,) = (setting.value for setting in service.settings if setting.name == "page_size")
    yield cache_config(metrics, page_size, stats.occupancy.total_pages)
