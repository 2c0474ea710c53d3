"""What one request brought: which tokens arrived when, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from sluice.bench.workload import Turn


class Arrival(NamedTuple):
    """Tokens that came in one event. With more than one, all of them are said to have come at this time."""

    at: float
    tokens: int


class CountedBy(StrEnum):
    """How it is known how many tokens the events carried."""

    IDS = "token ids"
    LOGPROBS = "logprobs"
    RUNNING_USAGE = "running usage"
    USAGE = "usage"
    """The total is the server's; events that must have carried several share what is over, by length of text."""
    TOKENIZER = "tokenizer"
    """As `USAGE`, the total being that of the answer's text by --tokenizer."""
    EVENTS = "events"
    """Nobody says: one for each event with text."""


class Failure(NamedTuple):
    """Why a request failed: a kind to count by, and what was said."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are seconds of the client's clock."""

    arrivals: tuple[Arrival, ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()
    """If the target gives them."""
    counted_by: CountedBy = CountedBy.EVENTS
    prompt_tokens: int | None = None
    """As the target counts them; None if it does not say."""
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def num_tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)


class Exchange(Protocol):
    """A request that was sent and is over."""

    @property
    def sent(self) -> float:
        """When the client turned to it, a connection still to be made."""
        ...

    @property
    def accepted(self) -> float | None:
        """When the target had taken it: the first byte of its answer's head, or the end of the call."""
        ...

    @property
    def ended(self) -> float: ...

    def answer(self) -> Answer:
        """What came, read from the raw bytes: costs time, so it is asked for after the run where possible."""
        ...


class Earlier(NamedTuple):
    """A turn of the same conversation and what was answered."""

    turn: Turn
    answer: Answer


class Target(Protocol):
    """Whoever is measured."""

    def prepare(self, turn: Turn, earlier: Sequence[Earlier]) -> object:
        """All that can be done before the request is due. What it returns is for `send` of the same target."""
        ...

    async def send(self, prepared: object) -> Exchange:
        """Send it and wait until it is over. Raises nothing: what went wrong is in the answer."""
        ...
