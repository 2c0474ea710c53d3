"""The events of `GET /v1/trace`: counts and times of steps and requests, without any token or text.

Times are microseconds since the server began, by one clock for the server and its engines.
"""

from __future__ import annotations

import msgspec

from sluice.types import Bound, FinishReason, Tier


class TracedRequest(msgspec.Struct):
    """A request that has neither ended nor been aborted."""

    id: int
    """Number of the request at the engine: larger than those of requests before it."""
    arrived: int
    """When it arrived at the server."""
    prompt_tokens: int
    output_tokens: int = 0
    """Output tokens that the server has received."""


class TracedEnd(msgspec.Struct):
    """The end of a request."""

    id: int
    at: int
    reason: FinishReason
    output_tokens: int | None
    """None: it was aborted by its client."""
    cached_tokens: int = 0
    host_tokens: int = 0
    """Cached tokens that were loaded from host memory."""
    disk_tokens: int = 0


class TracedChunk(msgspec.Struct):
    """A chunk of a prompt, or of tokens computed again."""

    id: int
    start: int
    """Position of its first token in the request."""
    length: int
    samples: bool
    """It brings its request's next token."""


class TracedSlice(msgspec.Struct):
    """A part of the work on a chunk that takes several steps: work items (layers, unless its context is longer than the
    device) `first` to `stop` of `total`."""

    id: int
    start: int
    length: int
    first: int
    stop: int
    total: int
    samples: bool
    """It completes the chunk, which brings its request's next token."""
    is_resident: bool
    """Whether all of its context is on the device."""


class TracedStep(msgspec.Struct, omit_defaults=True):
    """A step of the engine."""

    step: int
    began: int
    """When it began to compute."""
    micros: int
    """How long it computed."""
    known: int
    """When its tokens were known."""
    bound_by: Bound
    """The limit that kept it from holding more."""
    failed: bool = False
    decodes: list[int] | None = None
    """Requests that decoded, a token each. Left out: those of the step before, in the same event."""
    chunks: list[TracedChunk] = []
    slices: list[TracedSlice] = []
    admitted: list[int] = []
    """Requests that were given a place: new ones, and those that come back after a preemption."""
    counts: dict[int, int] = {}
    """Requests that got another number of tokens than their row promises, and that number."""
    loads: int = 0
    """Pages that it loads to the device."""
    stores: int = 0
    """Pages that it stores on another tier."""


class TracedTier(msgspec.Struct):
    """How full a tier behind the device is, in pages."""

    tier: Tier
    used: int
    total: int


class TracedPool(msgspec.Struct):
    """How full the engine is."""

    running: int
    waiting: int
    loading: int
    preemptions: int
    free_pages: int
    cached_pages: int
    """Pages of prefixes that no request uses now."""
    total_pages: int
    tiers: list[TracedTier] = []


class HelloEvent(msgspec.Struct, tag="hello", tag_field="kind"):
    """The first event of a stream."""

    now: int
    server: str
    """The server: another text after each start. Times and requests of two servers have nothing in common."""
    model: str
    is_serving: bool
    """There is an engine."""
    page_size: int
    """Tokens of a page."""
    requests: list[TracedRequest]


class StepsEvent(msgspec.Struct, tag="steps", tag_field="kind"):
    """Steps that ended."""

    now: int
    steps: list[TracedStep]
    pool: TracedPool


class RequestsEvent(msgspec.Struct, tag="requests", tag_field="kind"):
    """Requests that came, or ended."""

    now: int
    arrived: list[TracedRequest]
    ended: list[TracedEnd]


class EngineEvent(msgspec.Struct, tag="engine", tag_field="kind"):
    """The engine ended, or another one is there. Requests that are open continue in the next one."""

    now: int
    is_serving: bool


class DroppedEvent(msgspec.Struct, tag="dropped", tag_field="kind"):
    """The last event of a stream whose client read too slowly."""

    now: int


TraceEvent = HelloEvent | StepsEvent | RequestsEvent | EngineEvent | DroppedEvent
EVENT = msgspec.json.Encoder()


def framed(event: TraceEvent) -> bytes:
    """Return a server-sent event."""
    return b"data: " + EVENT.encode(event) + b"\n\n"
