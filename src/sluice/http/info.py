"""Routes that describe the server: its health, its model, its options, and how full it is."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from sluice.engine.messages import Stats
from sluice.engine.trace import StepRecord
from sluice.http.backend import Backend, Service
from sluice.http.errors import RETRY_SECONDS
from sluice.http.openapi import openapi
from sluice.process.client import EngineGone
from sluice.process.engine_state import EngineState
from sluice.types import Occupancy

FORMER_NAMES: Mapping[str, str] = {
    "poison_unread": "debug_uninitialized_reads",
    "stream_above": "offload_above",
}
"""Keys of options in /server_info before they were renamed. Clients may still read them."""


def add_health(app: FastAPI, backend: Backend) -> None:
    """Add the routes of health checks, which are answered from the engine's heartbeat even during a long step.

    GET /live    should this process live on? Not once it has given its engine up and is about to end.
    GET /ready   may new work be sent here? Not while the model loads, another engine is started, or it shuts down.
    GET /health  the same as /ready, with the engine's step and phase
    """

    @app.get("/live")
    async def live() -> Response:
        gone = backend.is_closed or backend.engine.has_given_up
        return JSONResponse({"status": backend.status if gone else "ok"}, status_code=503 if gone else 200)

    @app.get("/ready")
    async def ready() -> Response:
        return _readiness(backend, {"status": backend.status})

    @app.get("/health")
    async def health() -> Response:
        return _readiness(backend, {"status": backend.status, "engine": backend.engine.as_json()})


def _readiness(backend: Backend, body: dict[str, Any]) -> Response:
    if backend.is_ready:
        return JSONResponse(body)
    return JSONResponse(body, status_code=503, headers={"Retry-After": str(RETRY_SECONDS)})


def add_info(app: FastAPI, backend: Backend, started: int) -> None:
    """Add the routes that describe the model and the server.

    Args:
        started: when the server was, in Unix seconds.
    """

    @app.get("/v1/models")
    async def models() -> Response:
        service = backend.service()
        return JSONResponse({"object": "list", "data": [_model(service, name, started) for name in service.models]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service = backend.service()
        service.check_model(name)
        return JSONResponse(_model(service, name, started))

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def info() -> Response:
        return JSONResponse(await server_info(backend.service(), backend.engine))

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> Response:
        service = backend.service()
        return JSONResponse(
            {
                "model_path": service.model,
                "tokenizer_path": service.model,
                "is_generation": True,
                "max_total_num_tokens": service.limits.max_total_tokens,
                "context_length": service.limits.max_model_len,
            }
        )

    @app.post("/flush_cache")
    async def flush_cache() -> Response:
        """Forget what is cached and not in use. While there is no engine, there is no cache."""
        stats = await _or_none(backend.service().client.flush_cache())
        cached = 0 if stats is None else stats.occupancy.cached_pages
        return JSONResponse({"success": True, "cached_pages": cached})

    @app.get("/version")
    async def show_version() -> Response:
        return JSONResponse({"version": version("sluice")})

    @app.get("/openapi.json")
    async def schema() -> Response:
        return JSONResponse(openapi(version("sluice")))


def _model(service: Service, name: str, created: int) -> dict[str, object]:
    """Return a model as OpenAI lists it; `max_model_len` is vLLM's addition, here the most tokens of one request."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "sluice",
        "max_model_len": service.limits.max_request_tokens,
    }


async def server_info(service: Service, engine: EngineState) -> dict[str, Any]:
    """Return every option with its reason, and the state of the engine at the end of its step.

    While another engine is started, the answer comes at once: no request runs, and there is no page.
    """
    stats = await _or_none(service.client.stats())
    occupancy = (
        Occupancy(running=0, waiting=service.client.num_open, free_pages=0, cached_pages=0, total_pages=0)
        if stats is None
        else stats.occupancy
    )
    options = {setting.name: setting.as_json() for setting in service.settings}
    return {
        "model": service.model,
        "config": options | {former: options[name] for former, name in FORMER_NAMES.items()},
        "engine_pid": engine.pid,
        "engine_restarts": engine.stats.restarts,
        "recovery": engine.stats.as_json(),
        "disabled_tiers": dict(engine.disabled_tiers),
        **occupancy_as_json(occupancy),
        "memory": service.memory.as_dict(),
        "last_step": None if stats is None or stats.last_step is None else _step(stats.last_step),
    }


def occupancy_as_json(occupancy: Occupancy) -> dict[str, Any]:
    """Return how full the pool is, and each other tier."""
    fields = occupancy._asdict()
    # SGLang's word for it, which the answer has had from the start.
    return fields | {"retractions": fields["preemptions"], "tiers": [use._asdict() for use in occupancy.tiers]}


async def _or_none(stats: Awaitable[Stats]) -> Stats | None:
    """Return the engine's answer; None while there is no engine to give it."""
    try:
        return await stats
    except EngineGone:
        return None


def _step(record: StepRecord) -> dict[str, Any]:
    """Return a step with its length in place of its times, which are seconds of a clock without a known zero."""
    numbers = record._asdict()
    seconds = numbers.pop("ended_at") - numbers.pop("launched_at")
    return numbers | {"seconds": seconds}
