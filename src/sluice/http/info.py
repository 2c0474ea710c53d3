"""What `GET /server_info` says: every option as it came out, and how the engine stands."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from sluice.engine.messages import Stats
from sluice.engine.trace import StepRecord
from sluice.http.backend import Service
from sluice.process.client import EngineGone
from sluice.process.engine_state import EngineState
from sluice.types import Occupancy


async def server_info(service: Service, engine: EngineState) -> dict[str, Any]:
    """The answer, once the engine has said how it stands: at the end of the step that it is at.

    While another engine is started it comes at once: nothing runs, and no page is there.
    """
    stats = await _asked(service.client.stats())
    last_step = None if stats is None else stats.last_step
    occupancy = nothing_runs(service.client.num_open) if stats is None else stats.occupancy
    return {
        "model": service.model,
        "config": {setting.name: setting.as_json() for setting in service.settings},
        "engine_pid": engine.pid,
        "engine_restarts": engine.stats.restarts,
        "recovery": engine.stats.as_json(),
        **occupancy_as_json(occupancy),
        "memory": service.memory.as_dict(),
        "last_step": None if last_step is None else _step(last_step),
    }


def occupancy_as_json(occupancy: Occupancy) -> dict[str, Any]:
    """How full the pool is, and what lies behind the device, a tier each."""
    fields = occupancy._asdict()
    # SGLang's word for it, which the answer has had from the start.
    return fields | {"retractions": fields["preemptions"], "tiers": [use._asdict() for use in occupancy.tiers]}


async def flush_cache(service: Service) -> dict[str, Any]:
    """Forget what is cached and not in use; what is left of the cache. An engine that is not there has none."""
    stats = await _asked(service.client.flush_cache())
    return {"success": True, "cached_pages": 0 if stats is None else stats.occupancy.cached_pages}


def model_info(service: Service) -> dict[str, Any]:
    """The model as SGLang describes it."""
    return {
        "model_path": service.model,
        "tokenizer_path": service.model,
        "is_generation": True,
        "max_total_num_tokens": service.limits.max_total_tokens,
        "context_length": service.limits.max_model_len,
    }


async def _asked(question: Awaitable[Stats]) -> Stats | None:
    """The answer; None if there is no engine to give it."""
    try:
        return await question
    except EngineGone:
        return None


def nothing_runs(waiting: int) -> Occupancy:
    """How full no engine is."""
    return Occupancy(running=0, waiting=waiting, free_pages=0, cached_pages=0, total_pages=0)


def _step(record: StepRecord) -> dict[str, Any]:
    """Of the times only the difference means anything to others."""
    numbers = record._asdict()
    seconds = numbers.pop("ended_at") - numbers.pop("launched_at")
    return numbers | {"seconds": seconds}
