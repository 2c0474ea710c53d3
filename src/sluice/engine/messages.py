"""What the engine is told: plain values, made by whoever faces the user, sent over a `Link`."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.engine.meter import Totals
from sluice.engine.trace import StepRecord
from sluice.types import CopyDone, FinishReason, Occupancy, SamplingParams


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request. `sampling` is resolved (see `SamplingParams.resolved`); `request_id` is never used twice.

    A request that another engine had begun carries what the client has received so far: `output_ids`, and how many of
    the prompt's log-probabilities (`prompt_logprobs_sent`). These stay outputs, as after a preemption. `is_resumed`
    says that an engine had accepted the request before, begun or not, so no queue limit refuses it now.
    """

    request_id: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    sample_index: int = 0
    extra_key: str = ""
    priority: int = 0
    output_ids: tuple[int, ...] = ()
    prompt_logprobs_sent: int = 0
    is_resumed: bool = False
    start_deadline: float | None = None
    """Drop it if it has not begun by then, in seconds of the engine's clock (`clock.WallClock` is one for all processes
    of a machine)."""
    deadline: float | None = None
    """End it then."""


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


Message = Submit | Abort | QueryStats | FlushCache | Shutdown | Copied
