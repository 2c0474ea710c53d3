"""What a measurement keeps of each request: which tokens arrived when, and how the request ended.

Times are seconds after the run's start, on the client's clock. Table, report and comparison are computed from these
records alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class TokenArrival(NamedTuple):
    """Tokens that came in one event, all of them at this time."""

    at: float
    tokens: int


class CountedBy(StrEnum):
    """The source of an answer's token counts."""

    IDS = "token ids"
    LOGPROBS = "logprobs"
    RUNNING_USAGE = "running usage"
    USAGE = "usage"
    """The server gives the total. It is shared over the events by length of text."""
    TOKENIZER = "tokenizer"
    """The total is counted with --tokenizer. It is shared over the events as for `USAGE`."""
    EVENTS = "events"
    """No source: each event with text counts as one token."""


class Failure(NamedTuple):
    """Why a request failed: a kind to count by, and the message."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """One request."""

    session: int
    turn: int
    background: bool
    kind: str
    """The request's class: short, long, or the one that an arrivals file gives."""
    prompt_tokens: int
    """Tokens of the prompt as the target counts them, or as planned if it does not."""
    max_tokens: int
    due: float
    """When the request should have been sent. Latencies count from here."""
    sent: float
    """When the client began to send it. `sent - due` is the client's delay, or the wait for a place in the loop."""
    accepted: float | None
    ended: float
    arrivals: tuple[TokenArrival, ...]
    counted_by: CountedBy = CountedBy.EVENTS
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def failed(self) -> bool:
        return self.failure is not None

    @property
    def num_tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def first_token(self) -> float | None:
        return self.arrivals[0].at if self.arrivals else None

    @property
    def last_token(self) -> float | None:
        return self.arrivals[-1].at if self.arrivals else None


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement."""

    started: str
    """Date and time, ISO 8601, UTC."""
    requests: tuple[Record, ...]
    lag: tuple[float, ...] = ()
    """Seconds by which the client's event loop woke up late, one value each 50 ms."""
