"""Messages to an engine, sent over a `Link`, and its answers to queries."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.engine.meter import Totals
from sluice.engine.prompt_meter import PromptProgress
from sluice.engine.trace import StepRecord
from sluice.types import AdapterInfo, CopyDone, FinishReason, Occupancy, PageOffer, Submit


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request now. STOP is for a stop string in its text. Unknown and ended ids are ignored."""

    request_id: int
    reason: FinishReason = FinishReason.ABORT


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop after this message. Unfinished requests are dropped."""


@dataclass(frozen=True, slots=True)
class QueryStats:
    """Answer with one `Stats` of the same id."""

    query_id: int


@dataclass(frozen=True, slots=True)
class FlushCache:
    """Forget every cached page that no request holds, and then answer like `QueryStats`."""

    query_id: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of an engine: the answer to a `QueryStats` or `FlushCache`."""

    query_id: int
    occupancy: Occupancy
    last_step: StepRecord | None
    """The step that ended last; None before the first one."""
    totals: Totals = field(default_factory=Totals)
    """Counts since the engine began."""
    queued_prefill_tokens: int = 0
    """Prompt tokens that are neither computed nor in its cache, of all requests."""
    prompts: tuple[PromptProgress, ...] = ()
    """Prompts that are being read, in the order of their requests."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Copies with the disk have ended. Posted by the runner's threads."""

    done: tuple[CopyDone, ...]


@dataclass(frozen=True, slots=True)
class BlocksLoaded:
    """Blocks of an offloaded chunk were read ahead from the disk, or cannot be read. Posted by the runner's threads."""

    step: int
    """The step that began the chunk."""
    ready: int
    """Number of the chunk's work items, from the first one on, that have all their blocks."""
    error: str | None = None
    """Why a block that it attends to cannot be read."""
    lost_page: int | None = None
    """The page of the tier that cannot be read; None: it is not one page alone."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar of a request was compiled, or cannot be. Posted by threads that compile."""

    request_id: int
    error: str | None = None
    """Why the grammar cannot be used."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Read an adapter, keep it for requests, and answer with one `AdapterRead` of the same id."""

    query_id: int
    name: str
    path: str
    digest: str = ""
    """Digest that it must have; empty: any."""


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """An adapter was read, or cannot be: the answer to a `LoadAdapter`. Posted by the thread that reads."""

    query_id: int
    info: AdapterInfo | None = None
    error: str | None = None
    """Why it cannot be used, in one line for the user."""


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Forget an adapter, for which no request is open. Unknown ones are ignored."""

    adapter: str


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """An adapter was loaded beside the model, or cannot be. Posted by the thread that loads."""

    adapter: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WatchSteps:
    """Report what steps do (`step_watch.StepsSeen`), or no longer."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class OfferPages:
    """Answer with one `PagesOffered` of the same id: what is stored of a context, for another engine to load."""

    query_id: int
    tokens: tuple[int, ...]
    extra_key: str = ""


@dataclass(frozen=True, slots=True)
class TakePages:
    """Take pages of another engine, and answer with one `PagesTaken` of the same id."""

    query_id: int
    offer: PageOffer


@dataclass(frozen=True, slots=True)
class PagesOffered:
    """The answer to an `OfferPages`."""

    query_id: int
    offer: PageOffer | None
    error: str | None = None
    """Why there is no offer."""


@dataclass(frozen=True, slots=True)
class PagesTaken:
    """The answer to a `TakePages`."""

    query_id: int
    num_tokens: int = 0
    """Tokens whose pages the engine can load now, from the beginning of the context on."""
    error: str | None = None
    """Why it takes none."""


FromServer = (
    Submit
    | Abort
    | QueryStats
    | FlushCache
    | OfferPages
    | TakePages
    | LoadAdapter
    | UnloadAdapter
    | WatchSteps
    | Shutdown
)
"""What an engine accepts from its server."""
Message = FromServer | Copied | BlocksLoaded | Compiled | AdapterRead | AdapterLoaded
"""The others are posted in the engine's own process."""
