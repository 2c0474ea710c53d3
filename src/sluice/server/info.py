"""What `GET /server_info` says: every option as it came out, and how the engine stands."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from sluice.engine.messages import Stats
from sluice.engine.trace import StepRecord
from sluice.server.backend import Service
from sluice.server.client import EngineGone
from sluice.server.errors import unavailable


async def server_info(service: Service) -> dict[str, Any]:
    """The answer, once the engine has said how it stands: at the end of the step that it is at.

    Raises:
        ApiError: 503, the engine is gone.
    """
    stats = await _answered(service.client.stats())
    return {
        "model": service.model,
        "config": {setting.name: setting.as_json() for setting in service.settings},
        "engine_pid": service.engine_pid,
        "engine_restarts": 0,
        **stats.occupancy._asdict(),
        "last_step": None if stats.last_step is None else _step(stats.last_step),
    }


async def flush_cache(service: Service) -> dict[str, Any]:
    """Forget what is cached and not in use; what is left of the cache.

    Raises:
        ApiError: 503, the engine is gone.
    """
    stats = await _answered(service.client.flush_cache())
    return {"success": True, "cached_pages": stats.occupancy.cached_pages}


def model_info(service: Service) -> dict[str, Any]:
    """The model as SGLang describes it."""
    return {
        "model_path": service.model,
        "tokenizer_path": service.model,
        "is_generation": True,
        "max_total_num_tokens": service.limits.max_total_tokens,
        "context_length": service.limits.max_model_len,
    }


async def _answered(question: Awaitable[Stats]) -> Stats:
    try:
        return await question
    except EngineGone as error:
        raise unavailable(str(error)) from error


def _step(record: StepRecord) -> dict[str, Any]:
    """Of the times only the difference means anything to others."""
    numbers = record._asdict()
    seconds = numbers.pop("ended_at") - numbers.pop("launched_at")
    return numbers | {"seconds": seconds}
