"""Is it well? Three questions, answered from the engine's heartbeat, whatever the engine is doing.

    GET /live    should this process live on? No only once it has given its engine up and is about to end.
    GET /ready   may new work be sent here? Not while the model loads, another engine is started, or it shuts down.
    GET /health  the same as /ready, with what the engine is at

Nothing is generated and nobody is asked for it. A step that takes a minute is well; an engine that is stuck is not.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from sluice.http.backend import Backend
from sluice.http.errors import RETRY_SECONDS


def add_health(app: FastAPI, backend: Backend) -> None:
    """Add the three routes."""

    @app.get("/live")
    async def live() -> Response:
        gone = backend.is_closed or backend.engine.has_given_up
        return JSONResponse({"status": backend.status if gone else "ok"}, status_code=503 if gone else 200)

    @app.get("/ready")
    async def ready() -> Response:
        return _answer(backend, {"status": backend.status})

    @app.get("/health")
    async def health() -> Response:
        return _answer(backend, {"status": backend.status, "engine": backend.engine.as_json()})


def _answer(backend: Backend, body: dict[str, Any]) -> Response:
    if backend.is_ready:
        return JSONResponse(body)
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_SECONDS)})
