"""Routes that describe the server: its health, its model, its options, and how full it is."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from sluice.assembly.explain import Setting
from sluice.config import flag
from sluice.engine.messages import Stats
from sluice.engine.meter import LATE_BY, ItlTotals, RingTotals
from sluice.engine.trace import StepRecord
from sluice.http.base.backend import Backend, Service
from sluice.http.base.errors import RETRY_SECONDS
from sluice.http.base.openapi import openapi
from sluice.http.base.routes import Routes, json_answer
from sluice.http.observe.info_types import (
    AdapterState,
    CacheFlushed,
    ClassTargets,
    EffectiveOption,
    EngineHealth,
    Health,
    ItlState,
    LastStep,
    Model,
    ModelInfo,
    ModelList,
    PromptState,
    Recovery,
    RegimeTimes,
    RingState,
    ServerInfo,
    Status,
    StepPace,
    TierState,
    TokenizerInfo,
    Version,
)
from sluice.process.client import EngineGone
from sluice.process.engine_state import EngineState
from sluice.types import AdapterUse, Occupancy, PriorityClass
from sluice.version import VERSION


def add_health(routes: Routes, backend: Backend) -> None:
    """Add the routes of health checks, which are answered from the engine's heartbeat even during a long step.

    GET /live    should this process live on? Not once it has given its engine up and is about to end.
    GET /ready   may new work be sent here? Not while the model loads, another engine is started, or it shuts down.
    GET /health  the same as /ready, with the engine's step and phase; but a server that was put to sleep is well
    GET /ping    the same, for SageMaker
    """

    @routes.add(
        "GET",
        "/live",
        summary="Whether its process should live on: 200 or 503",
        answer=Status,
        unavailable=Status,
    )
    async def live(request: Request) -> Response:
        gone = backend.is_closed or backend.engine.has_given_up
        return json_answer(Status(backend.status if gone else "ok"), 503 if gone else 200)

    @routes.add(
        "GET",
        "/ready",
        summary="Whether new work may be sent to it: 200 or 503",
        answer=Status,
        unavailable=Status,
    )
    async def ready(request: Request) -> Response:
        return _readiness(backend.is_ready, Status(backend.status))

    @routes.add(
        "GET",
        "/health",
        "/ping",
        summary="Whether it can be used: 200 or 503; and the engine's step and phase",
        answer=Health,
        unavailable=Health,
    )
    async def health(request: Request) -> Response:
        engine = EngineHealth(**backend.engine.as_json())
        return _readiness(backend.is_well, Health(backend.status, engine))


def _readiness(is_fine: bool, body: Status) -> Response:
    if is_fine:
        return json_answer(body)
    return json_answer(body, 503, headers={"Retry-After": str(RETRY_SECONDS)})


def add_info(routes: Routes, backend: Backend, started: int) -> None:
    """Add the routes that describe the model and the server.

    Args:
        started: when the server was, in Unix seconds.
    """

    @routes.add("GET", "/v1/models", summary="The model that is served (OpenAI)", answer=ModelList)
    async def models(request: Request) -> Response:
        service = backend.service()
        names = (*service.models, *service.adapters)
        return json_answer(ModelList("list", [_model(service, name, started) for name in names]))

    @routes.add("GET", "/v1/models/{name:path}", summary="One model (OpenAI)", answer=Model)
    async def model(request: Request) -> Response:
        service = backend.service()
        name = request.path_params["name"]
        adapter = service.adapter_of(name)
        return json_answer(_model(service, name if adapter is None else adapter.name, started))

    @routes.add(
        "GET",
        "/server_info",
        "/get_server_info",
        summary="Every option with its reason, and the state of the engine",
        answer=ServerInfo,
    )
    async def info(request: Request) -> Response:
        return json_answer(await server_info(backend.service(), backend.engine))

    @routes.add("GET", "/model_info", "/get_model_info", summary="The model that is served (SGLang)", answer=ModelInfo)
    async def model_info(request: Request) -> Response:
        service = backend.service()
        limits = service.limits
        info = ModelInfo(service.model, service.model, True, limits.max_total_tokens, limits.max_model_len)
        return json_answer(info)

    @routes.add("GET", "/tokenizer_info", summary="The tokenizer (vLLM)", answer=TokenizerInfo)
    async def tokenizer_info(request: Request) -> Response:
        return json_answer(_tokenizer_info(backend.service()))

    @routes.add("POST", "/flush_cache", summary="Forget what is cached and not in use (SGLang)", answer=CacheFlushed)
    async def flush_cache(request: Request) -> Response:
        """Forget what is cached and not in use. While there is no engine, there is no cache."""
        stats = await _or_none(backend.service().client.flush_cache())
        cached = 0 if stats is None else stats.occupancy.cached_pages
        return json_answer(CacheFlushed(True, cached))

    @routes.add("GET", "/version", summary="The version of the server", answer=Version)
    async def show_version(request: Request) -> Response:
        return json_answer(Version(VERSION))


def add_description(routes: Routes) -> None:
    """Add the route that describes all routes, those that are added later too."""

    @routes.add("GET", "/openapi.json", summary="This document (OpenAPI)", answer=dict)
    async def schema(request: Request) -> Response:
        return json_answer(openapi(routes.operations, VERSION))


def _tokenizer_info(service: Service) -> TokenizerInfo:
    tokenizer = service.tokenizer
    first = tokenizer.encode("a")[:1] if tokenizer.num_special_before else []
    ends = [tokenizer.decode([id], skip_special_tokens=False) for id in sorted(service.eos_token_ids)]
    end = ends[0] if ends else None
    begin = tokenizer.decode(first, skip_special_tokens=False) if first else None
    length = service.limits.max_request_tokens
    template = tokenizer.chat_template_source
    return TokenizerInfo("PreTrainedTokenizerFast", begin, end, end, tokenizer.vocab_size, length, template)


def _model(service: Service, name: str, created: int) -> Model:
    parent = service.model if name in service.adapters else UNSET
    return Model(name, "model", created, "sluice", service.limits.max_request_tokens, parent)


async def server_info(service: Service, engine: EngineState) -> ServerInfo:
    """Return every option with its reason, and the state of the engine at the end of its step.

    While another engine is started, the answer comes at once: no request runs, and there is no page.
    """
    stats = await _or_none(service.client.stats())
    occupancy = (
        Occupancy(running=0, waiting=service.client.num_open, free_pages=0, cached_pages=0, total_pages=0)
        if stats is None
        else stats.occupancy
    )
    return ServerInfo(
        model=service.model,
        model_path=service.model,
        served_model_name=service.model,
        config={setting.name: _option(setting) for setting in service.settings},
        engine_pid=engine.pid,
        engine_restarts=engine.stats.restarts,
        recovery=Recovery(**engine.stats.as_json()),
        disabled_tiers=dict(engine.disabled_tiers),
        memory=service.memory,
        priority_classes={each.name: _targets(each) for each in service.limits.classes},
        prompts=[] if stats is None else [PromptState(**each._asdict()) for each in stats.prompts],
        ring=RingState(**(RingTotals() if stats is None else stats.totals.ring)._asdict()),
        itl=None if stats is None or stats.totals.itl is None else _itl(stats.totals.itl),
        last_step=None if stats is None or stats.last_step is None else _step(stats.last_step),
        **occupancy_fields(occupancy) | {"adapters": [_adapter(service, use) for use in occupancy.adapters]},
    )


def _adapter(service: Service, use: AdapterUse) -> AdapterState:
    return AdapterState(service.client.adapters.name_of(use.adapter), *use)


def occupancy_fields(occupancy: Occupancy) -> dict[str, Any]:
    """Return the fields of `ServerInfo` that say how full the pool is, and each other tier."""
    fields = occupancy._asdict()
    # `retractions` is SGLang's word.
    return fields | {
        "retractions": fields["preemptions"],
        "tiers": [TierState(**use._asdict()) for use in occupancy.tiers],
    }


async def _or_none(stats: Awaitable[Stats]) -> Stats | None:
    """Return the engine's answer; None while there is no engine to give it."""
    try:
        return await stats
    except EngineGone:
        return None


def _option(setting: Setting) -> EffectiveOption:
    return EffectiveOption(setting.value, setting.reason, setting.group, flag(setting.name))


def _step(record: StepRecord) -> LastStep:
    """Return a step with its length in place of its times, which are seconds of a clock without a known zero."""
    numbers = record._asdict()
    seconds = numbers.pop("ended_at") - numbers.pop("launched_at")
    pace = None if record.pace is None else StepPace(**record.pace._asdict())
    return LastStep(**numbers | {"pace": pace, "seconds": seconds})


def _targets(one: PriorityClass) -> ClassTargets:
    return ClassTargets(one.ttft_target / 1e6, one.itl_target / 1e6 if one.itl_target else None)


def _itl(itl: ItlTotals) -> ItlState:
    late = {f"over_{share:.0%}": count for share, count in zip(LATE_BY, itl.late, strict=True)}
    regimes = {name: RegimeTimes(**totals._asdict()) for name, totals in itl.regimes.items()}
    return ItlState(itl.target, itl.margin, regimes, late, itl.infeasible)
