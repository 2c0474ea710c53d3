"""One generation as the scheduler sees it: two counters, the pages under them, and where it stands."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum

from sluice.kv.manager import Lease
from sluice.types import FinishReason, SamplingParams


class Place(Enum):
    """Where a request is: in exactly one of these at any time."""

    WAITING = "waiting"
    PARTIAL = "partial"
    DECODING = "decoding"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Request:
    """One generation, as the scheduler sees it. Only `add`, `abort`, `schedule`, `commit` and `fail` change it.

        0 ........ cached ........ computed ........ scheduled ........ len(tokens) + pending
        found in   known done      promised to the   all there is to compute
        the cache                  device

    `tokens` holds what the host knows (prompt, then outputs); `pending` counts samples on their way back.
    """

    id: int
    prompt_len: int
    tokens: array[int]
    sampling: SamplingParams
    sample_index: int = 0
    extra_key: str = ""

    max_tokens: int = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    place: Place = Place.WAITING
    slot: int = -1
    lease: Lease | None = None
    cached: int = 0
    computed: int = 0
    scheduled: int = 0
    pending: int = 0
    in_flight: int = 0
    """Plans launched and not committed that hold a row of this request."""
    prefill_end: int = 0
    """Tokens known at admission: below it a chunk is prefill (prompt, or recomputed after a retraction)."""
    num_cached_tokens: int = -1
    """Prompt tokens found in the cache at the first admission, -1 before it."""
    retractions: int = 0
    finish_reason: FinishReason | None = None
    """Set when it is decided; the request may still drain. None while DRAINING means: retracted, will wait again."""

    def __post_init__(self) -> None:
        assert self.sampling.max_tokens is not None and self.sampling.seed is not None, self.sampling
        self.max_tokens = self.sampling.max_tokens
        self.stop_ids = frozenset(self.sampling.stop_token_ids)

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def extend_len(self) -> int:
        """Tokens not planned yet."""
        return len(self.tokens) + self.pending - self.scheduled
