"""Sluice: LLM inference with chunked prefill. `LLM` in process, `AsyncLLM` for asyncio, `sluice serve` over HTTP.

Public names are loaded when they are first used, so that importing a part of the package loads only that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.config import EngineConfig
    from sluice.llm.async_llm import AsyncLLM
    from sluice.llm.llm import LLM
    from sluice.types import SamplingParams

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "SamplingParams"]


def __getattr__(name: str) -> Any:
    match name:
        case "LLM":
            return import_module("sluice.llm.llm").LLM
        case "AsyncLLM":
            return import_module("sluice.llm.async_llm").AsyncLLM
        case "EngineConfig":
            return import_module("sluice.config").EngineConfig
        case "SamplingParams":
            return import_module("sluice.types").SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
