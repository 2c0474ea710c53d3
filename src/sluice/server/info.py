"""What `GET /server_info` says: every option as it came out, and how the engine stands."""

from __future__ import annotations

from typing import Any

from sluice.engine.trace import StepRecord
from sluice.server.backend import Service
from sluice.server.client import EngineGone
from sluice.server.errors import unavailable


async def server_info(service: Service) -> dict[str, Any]:
    """The answer, once the engine has said how it stands: at the end of the step that it is at.

    Raises:
        ApiError: 503, the engine is gone.
    """
    try:
        stats = await service.client.stats()
    except EngineGone as error:
        raise unavailable(str(error)) from error
    return {
        "model": service.model,
        "config": {setting.name: setting.as_json() for setting in service.settings},
        "engine_pid": service.engine_pid,
        "engine_restarts": 0,
        **stats.occupancy._asdict(),
        "last_step": None if stats.last_step is None else _step(stats.last_step),
    }


def _step(record: StepRecord) -> dict[str, Any]:
    """Of the times only the difference means anything to others."""
    numbers = record._asdict()
    seconds = numbers.pop("ended_at") - numbers.pop("launched_at")
    return numbers | {"seconds": seconds}
