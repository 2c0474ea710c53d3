"""What the engine is told: plain values, made by whoever faces the user, sent over a `Link`."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.types import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request. `sampling` is resolved (see `SamplingParams.resolved`); `request_id` is never used twice."""

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    sample_index: int = 0
    extra_key: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request now. STOP is for a stop string found in its text; unknown or ended ids are ignored."""

    request_id: int
    reason: FinishReason = FinishReason.ABORT


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop after this message; what is unfinished is dropped."""


Message = Submit | Abort | Shutdown
