"""Messages to an engine, sent over a `Link`, and its answers to queries."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.engine.meter import Totals
from sluice.engine.trace import StepRecord
from sluice.types import CopyDone, FinishReason, Occupancy, Submit


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request now. STOP is for a stop string found in its text; unknown or ended ids are ignored."""

    request_id: int
    reason: FinishReason = FinishReason.ABORT


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop after this message; what is unfinished is dropped."""


@dataclass(frozen=True, slots=True)
class QueryStats:
    """Asks for one `Stats` with the same id."""

    query_id: int


@dataclass(frozen=True, slots=True)
class FlushCache:
    """Forget every cached page that nobody uses, and then answer like `QueryStats`."""

    query_id: int


@dataclass(frozen=True, slots=True)
class Stats:
    """How an engine stands: what the answer to a `QueryStats` or `FlushCache` says."""

    query_id: int
    occupancy: Occupancy
    last_step: StepRecord | None
    """None before the first."""
    totals: Totals = field(default_factory=Totals)
    """Since the engine began."""


@dataclass(frozen=True, slots=True)
class Copied:
    """From the runner's own threads: these copies with the disk have ended."""

    done: tuple[CopyDone, ...]


@dataclass(frozen=True, slots=True)
class BlocksLoaded:
    """From the runner's own threads: blocks of an offloaded chunk were read ahead from the disk, or cannot be read."""

    step: int
    """The step that began the chunk."""
    ready: int
    """How many of the chunk's work items, from the first one on, have all their blocks."""
    error: str | None = None
    """Why a block that it attends to cannot be read."""


Message = Submit | Abort | QueryStats | FlushCache | Shutdown | Copied | BlocksLoaded
