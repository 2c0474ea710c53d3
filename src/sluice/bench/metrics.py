"""Numbers from records. Pure functions; times in seconds. A simulation's numbers are made here too.

    TTFT      due -> first token                    one for each request that had a token
    TPOT      (last - first token) / (tokens - 1)   one for each request with at least two tokens
    ITL       token -> next token                   one for each token but a request's first; tokens of one event: 0
    e2e       due -> last token                     one for each request that did not fail
    add       sent -> accepted                      one for each request that was accepted

Tokens that came before a request failed count: they did come. What never came has no latency, so the numbers of
requests behind each figure and of those that failed stand beside it, and a failed request is never a good one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from sluice.bench.records import Record
from sluice.bench.workload import LONG
from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Spread:
    """How values are distributed; None where there are none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    if not found:
        return Spread(0, None, None, None, None, None, None)
    p50, p90, p95, p99 = (percentile(found, q) for q in (50, 90, 95, 99))
    return Spread(len(found), math.fsum(found) / len(found), p50, p90, p95, p99, found[-1])


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile of values in ascending order, at least one; between two of them, linear interpolation."""
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


Metric = Callable[[Record], float | None]


def ttft(record: Record) -> float | None:
    return None if record.first_token is None else record.first_token - record.due


def ttft_after_send(record: Record) -> float | None:
    return None if record.first_token is None else record.first_token - record.sent


def e2e(record: Record) -> float | None:
    return None if record.failed or record.last_token is None else record.last_token - record.due


def e2e_after_send(record: Record) -> float | None:
    return None if record.failed or record.last_token is None else record.last_token - record.sent


def tpot(record: Record) -> float | None:
    if record.first_token is None or record.last_token is None or record.num_tokens < 2:
        return None
    return (record.last_token - record.first_token) / (record.num_tokens - 1)


def add_latency(record: Record) -> float | None:
    return None if record.accepted is None else record.accepted - record.sent


class Gap(NamedTuple):
    """From the token before, at `start`, to a token at `end`."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def gaps(record: Record) -> list[Gap]:
    """One for each token but the first. Of an event's tokens the first has the whole gap, the others none."""
    found = []
    before: float | None = None
    for at, tokens in record.arrivals:
        if before is not None:
            found.append(Gap(before, at))
        found += [Gap(at, at)] * (tokens - 1)
        before = at
    return found


def itls(records: Iterable[Record]) -> list[float]:
    return [gap.seconds for record in records for gap in gaps(record)]


class Window(NamedTuple):
    """A time in which at least one long prompt was in prefill."""

    start: float
    end: float


def prefill_windows(records: Iterable[Record], kind: str = LONG) -> list[Window]:
    """From the send of each long request to its first token, or its end if none came; those that overlap as one."""
    found: list[Window] = []
    for start, end in sorted(
        (record.sent, record.ended if record.first_token is None else record.first_token)
        for record in records
        if record.kind == kind
    ):
        if found and start <= found[-1].end:
            found[-1] = Window(found[-1].start, max(found[-1].end, end))
        else:
            found.append(Window(start, end))
    return found


def split_itls(records: Iterable[Record], windows: Sequence[Window]) -> tuple[list[float], list[float]]:
    """ITLs of gaps that overlap a window, and the others.

    The first are of those who were decoding while a long prompt was in prefill. A gap that reaches into a window
    counts whole: the token that closes it is the one that waited for the prefill.

    Args:
        windows: in order, none overlapping another.
    """
    inside: list[float] = []
    outside: list[float] = []
    for record in records:
        index = 0
        for gap in gaps(record):
            while index < len(windows) and windows[index].end <= gap.start:
                index += 1
            overlaps = index < len(windows) and windows[index].start < gap.end
            (inside if overlaps else outside).append(gap.seconds)
    return inside, outside


@dataclass(frozen=True, slots=True)
class Goodput:
    """What makes a request good: none of its latencies is over its limit. Seconds; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    """Of every single gap."""
    e2e: float | None = None

    def is_good(self, record: Record) -> bool:
        if record.failed or not record.arrivals:
            return False
        worst_gap = max((gap.seconds for gap in gaps(record)), default=None)
        limits = (self.ttft, self.tpot, self.itl, self.e2e)
        values = (ttft(record), tpot(record), worst_gap, e2e(record))
        pairs = zip(limits, values, strict=True)
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one class of requests."""

    requests: int
    failed: int
    ttft: Spread
    ttft_after_send: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    e2e_after_send: Spread
    add: Spread
    late: Spread
    """`sent - due`"""


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one run."""

    seconds: float
    """From the first request that was due to the last token, or to a failure."""
    requests: int
    failed: int
    prompt_tokens: int
    """Of requests that had a token."""
    cached_tokens: int | None
    """None if the target does not say."""
    output_tokens: int
    input_per_second: float
    output_per_second: float
    requests_per_second: float
    """Of those that did not fail."""
    good: int | None
    """None without limits."""
    good_per_second: float | None
    bundled_tokens: int
    """Tokens that came in one event with another before them."""
    bundled_events: int
    """Events with more than one token."""
    events: int
    together: int
    """Tokens that came in an event of their own, but at one time with the request's token before."""
    short_answers: int
    """Requests that did not fail and gave fewer tokens than they were asked for."""
    all: Latencies
    by_kind: dict[str, Latencies]
    windows: int
    window_seconds: float
    itl_in_windows: Spread
    itl_outside: Spread

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens, 0 to 1; 0 if the target does not say."""
        return (self.cached_tokens or 0) / max(1, self.prompt_tokens)


def summarize(records: Sequence[Record], goodput: Goodput | None = None) -> Summary:
    """The numbers of the requests of one run, at least one."""
    seconds = max(1e-9, max(map(_end, records)) - min(record.due for record in records))
    begun = [record for record in records if record.arrivals]
    done = [record for record in records if not record.failed]
    output_tokens = sum(record.num_tokens for record in records)
    prompt_tokens = sum(record.prompt_tokens for record in begun)
    good = None if goodput is None else sum(map(goodput.is_good, records))
    events = [arrival for record in records for arrival in record.arrivals]
    windows = prefill_windows(records)
    inside, outside = split_itls(records, windows)
    return Summary(
        seconds=seconds,
        requests=len(records),
        failed=len(records) - len(done),
        prompt_tokens=prompt_tokens,
        cached_tokens=_cached(begun),
        output_tokens=output_tokens,
        input_per_second=prompt_tokens / seconds,
        output_per_second=output_tokens / seconds,
        requests_per_second=len(done) / seconds,
        good=good,
        good_per_second=None if good is None else good / seconds,
        bundled_tokens=sum(arrival.tokens - 1 for arrival in events),
        bundled_events=sum(arrival.tokens > 1 for arrival in events),
        events=len(events),
        together=sum(_together(record) for record in records),
        short_answers=sum(record.num_tokens < record.max_tokens for record in done),
        all=latencies(records),
        by_kind={
            kind: latencies([record for record in records if record.kind == kind])
            for kind in sorted({record.kind for record in records}, key=lambda kind: (kind == LONG, kind))
        },
        windows=len(windows),
        window_seconds=sum(window.end - window.start for window in windows),
        itl_in_windows=spread(inside),
        itl_outside=spread(outside),
    )


def latencies(records: Sequence[Record]) -> Latencies:
    def of(metric: Metric) -> Spread:
        return spread(value for value in map(metric, records) if value is not None)

    return Latencies(
        requests=len(records),
        failed=sum(record.failed for record in records),
        ttft=of(ttft),
        ttft_after_send=of(ttft_after_send),
        tpot=of(tpot),
        itl=spread(itls(records)),
        e2e=of(e2e),
        e2e_after_send=of(e2e_after_send),
        add=of(add_latency),
        late=spread(record.sent - record.due for record in records),
    )


@dataclass(frozen=True, slots=True)
class Errors:
    """Requests that failed in one way."""

    kind: str
    count: int
    message: str
    """Of the first."""
    longest_wait: float
    """Seconds that one of them waited, since its last token or since it was due, until it failed: a latency that no
    percentile holds, and at least so long."""


def errors(records: Iterable[Record]) -> list[Errors]:
    """What went wrong, most frequent first."""
    found: dict[str, Errors] = {}
    for record in records:
        if record.failure is None:
            continue
        kind, message = record.failure
        waited = record.ended - (record.due if record.last_token is None else record.last_token)
        before = found.get(kind, Errors(kind, 0, message, 0.0))
        found[kind] = Errors(kind, before.count + 1, before.message, max(before.longest_wait, waited))
    return sorted(found.values(), key=lambda item: -item.count)


def parse_goodput(text: str) -> Goodput:
    """
    Args:
        text: "ttft:500 itl:100", limits in milliseconds.

    Raises:
        ConfigError: another name, no number, a name twice.
    """
    limits: dict[str, float] = {}
    for part in text.split():
        name, _, number = part.partition(":")
        known = [item.name for item in fields(Goodput)]
        try:
            limit = float(number) / 1000
        except ValueError:
            limit = -1.0
        if name not in known or name in limits or not 0 < limit < math.inf:
            raise ConfigError(f"--goodput takes NAME:MILLISECONDS, each of {', '.join(known)} once, got {part!r}")
        limits[name] = limit
    if not limits:
        raise ConfigError("--goodput takes NAME:MILLISECONDS, got nothing")
    return Goodput(**limits)


def _end(record: Record) -> float:
    return record.ended if record.failed or record.last_token is None else record.last_token


def _cached(records: Sequence[Record]) -> int | None:
    told = [record.cached_tokens for record in records if record.cached_tokens is not None]
    return sum(told) if told else None


def _together(record: Record) -> int:
    return sum(after.at == before.at for before, after in pairwise(record.arrivals))
