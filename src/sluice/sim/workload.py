"""What arrives in a simulation, and when: requests as plain data, whose tokens are made when they are needed.

A prompt is a few segments, not a tuple of ids, so that days of traffic fit in memory. Prompts that begin with equal
segments begin with equal tokens, and share pages in the prefix cache as the real ones did. A turn of a conversation
has the segments of the turns before it, and of their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

from sluice.config import ConfigError
from sluice.kv.digests import page_digests
from sluice.types import namespace_of

STOP_TOKEN = 0
"""The id that ends an answer before its `max_tokens`. No segment contains it."""
MOST_TOKENS = 1 << 24
"""Most tokens of one segment."""
FIRST_TOKENS = (1 << 31) - MOST_TOKENS - 1


class TokenSource(Protocol):
    """Tokens of a prompt or of an answer."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        ...

    def tokens(self) -> Sequence[int]:
        """Return the token ids, the same ones each time."""
        ...


class Segment(NamedTuple):
    """Tokens that depend on a seed alone: those of a shorter segment of this seed are the first ones of a longer."""

    seed: int
    length: int

    def tokens(self) -> range:
        """Return consecutive ids from one that the seed decides: two segments of different seeds begin alike with a
        probability of 2^-31."""
        # The finaliser of splitmix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", 2014).
        mixed = (self.seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        first = 1 + (mixed ^ (mixed >> 31)) % FIRST_TOKENS
        return range(first, first + self.length)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens that are made of segments, each from 1 to `MOST_TOKENS` long.

    >>> question = Prompt((Segment(7, 3),))
    >>> follow_up = question + Prompt((Segment(8, 2),))
    >>> follow_up.length, follow_up.tokens()[:3] == question.tokens()
    (5, True)
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        for seed, length in self.segments:
            if not 1 <= length <= MOST_TOKENS:
                raise ValueError(f"a segment must have from 1 to {MOST_TOKENS} tokens, segment {seed} has {length}")

    def __add__(self, other: Prompt) -> Prompt:
        return Prompt(self.segments + other.segments)

    @property
    def length(self) -> int:
        segments = self.segments
        return segments[0].length if len(segments) == 1 else sum([length for _, length in segments])

    def tokens(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(segment.tokens() for segment in self.segments))


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Tokens as they were recorded."""

    ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.ids)

    def tokens(self) -> tuple[int, ...]:
        return self.ids


class Longest(NamedTuple):
    """Most tokens that a request may have, prompt and answer together."""

    tokens: int
    why: str
    """What allows no more."""


class Leaves(NamedTuple):
    """When a client leaves before the end of its answer."""

    after_tokens: int = 0
    """Output tokens with which it leaves; 0: it leaves by time."""
    after_seconds: float = 0.0
    """Seconds after its arrival at which it leaves, if `after_tokens` is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that arrives.

    Raises:
        ValueError: a value that cannot be; the message names it.
    """

    time: float
    """Seconds since the start, at least 0."""
    prompt: TokenSource
    output_tokens: int
    """Tokens of its answer, at least 1. It ends then, with a stop token if `max_tokens` are more."""
    max_tokens: int
    """Most tokens that it asks for: the scheduler knows this number alone."""
    session: str | None = None
    """Conversation that it belongs to."""
    priority: int = 0
    """Priority under the policy `priority`."""
    priority_class: str = ""
    """Class under the policy `deadline`."""
    extra_key: str = ""
    """Salt of the prefix cache."""
    adapter: str = ""
    """Adapter that it is computed with, as `Submit.adapter`."""
    itl_target: int = 0
    """Microseconds, as `Submit.itl_target`."""
    answer: TokenSource | None = None
    """Tokens of its answer, so that a later prompt may hold them. None: tokens that occur nowhere else."""
    leaves: Leaves | None = None
    kind: str = ""
    """Class that results are shown by; "": by the length of the prompt."""

    def __post_init__(self) -> None:
        if not 0 <= self.time < float("inf"):
            raise ValueError(f"the time must be at least 0, got {self.time}")
        if self.prompt.length < 1:
            raise ValueError("the prompt must have at least one token, got none")
        if self.output_tokens < 1:
            raise ValueError(f"output tokens must be at least 1, got {self.output_tokens}")
        if self.max_tokens < self.output_tokens:
            raise ValueError(f"max_tokens {self.max_tokens} are fewer than the {self.output_tokens} output tokens")
        if self.answer is not None and self.answer.length < self.output_tokens:
            raise ValueError(f"an answer of {self.answer.length} tokens for {self.output_tokens} output tokens")

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt (see `routing.dispatch.RoutedRequest`)."""
        return self.prompt.length

    @property
    def namespace(self) -> str:
        """Its namespace of the prefix cache, as `Submit.namespace`."""
        return namespace_of(self.adapter, self.extra_key)

    def tokens(self) -> Sequence[int]:
        """Return the ids of its prompt."""
        return self.prompt.tokens()

    def digests(self, page_size: int) -> Sequence[bytes]:
        """Return the digests of the full pages of its prompt (see `routing.dispatch.RoutedRequest`)."""
        return list(page_digests(self.tokens(), page_size, self.namespace))


Workload = Iterable[Arrival]
"""Arrivals, ordered by time. It may be read as it is simulated, and more than once."""


def in_order(workload: Workload) -> Iterator[Arrival]:
    """Yield the arrivals.

    Raises:
        ConfigError: one arrives before the one that precedes it, or there is none.
    """
    number, latest = 0, 0.0
    for number, arrival in enumerate(workload, start=1):
        if arrival.time < latest:
            raise ConfigError(f"request {number} arrives at {arrival.time} s, before the one that precedes it")
        latest = arrival.time
        yield arrival
    if not number:
        raise ConfigError("the workload holds no request")
