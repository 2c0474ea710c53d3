"""Computes the numbers of a run from its records. Times are seconds.

    TTFT      due -> first token                    one for each request that had a token
    TPOT      (last - first token) / (tokens - 1)   one for each request with at least two tokens
    ITL       token -> next token                   one for each token but a request's first; tokens of one event: 0
    e2e       due -> last token                     one for each request that did not fail
    add       sent -> accepted                      one for each request that was accepted

Tokens that came before a request failed count. A token that never came has no latency, so beside each figure stand
the number of requests behind it and the number that failed. A failed request is never a good one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from sluice.bench.records import Record
from sluice.bench.workload import LONG
from sluice.config import ConfigError


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some values. Figures are None where there are no values."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None

    def figures(self) -> dict[str, float | None]:
        """Return mean, percentiles and maximum by name."""
        return {name: value for name, value in asdict(self).items() if name != "count"}


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    if not found:
        return Spread(0, None, None, None, None, None, None)
    p50, p90, p95, p99 = (percentile(found, q) for q in (50, 90, 95, 99))
    return Spread(len(found), math.fsum(found) / len(found), p50, p90, p95, p99, found[-1])


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the q-th percentile of at least one value in ascending order, with linear interpolation."""
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    if place == low:
        return ordered[low]  # whatever the next one is, it may be infinite
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (place - low)


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else end - start


def ttft(record: Record) -> float | None:
    return _seconds(record.due, record.first_token)


def ttft_after_send(record: Record) -> float | None:
    return _seconds(record.sent, record.first_token)


def e2e(record: Record) -> float | None:
    return None if record.failed else _seconds(record.due, record.last_token)


def e2e_after_send(record: Record) -> float | None:
    return None if record.failed else _seconds(record.sent, record.last_token)


def tpot(record: Record) -> float | None:
    if record.first_token is None or record.last_token is None or record.num_tokens < 2:
        return None
    return (record.last_token - record.first_token) / (record.num_tokens - 1)


def add_latency(record: Record) -> float | None:
    return _seconds(record.sent, record.accepted)


class Span(NamedTuple):
    """A period of the run: the gap between two tokens of a request, or a window with a long prompt in prefill."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def gaps(record: Record) -> list[Span]:
    """Return one gap for each token but the first. Of an event's tokens the first has the whole gap, the others 0."""
    found = []
    before: float | None = None
    for at, tokens in record.arrivals:
        if before is not None:
            found.append(Span(before, at))
        found += [Span(at, at)] * (tokens - 1)
        before = at
    return found


def itls(records: Iterable[Record]) -> list[float]:
    return [gap.seconds for record in records for gap in gaps(record)]


def prefill_windows(records: Iterable[Record]) -> list[Span]:
    """Return the periods from the send of each long request to its first token, or its end if none came.

    Those that overlap are joined.
    """
    found: list[Span] = []
    for start, end in sorted(
        (record.sent, record.ended if record.first_token is None else record.first_token)
        for record in records
        if record.kind == LONG
    ):
        if found and start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, end))
        else:
            found.append(Span(start, end))
    return found


def split_itls(records: Iterable[Record], windows: Sequence[Span]) -> tuple[list[float], list[float]]:
    """Return the ITLs of gaps that overlap a window, and the others.

    The first belong to requests that were decoding while a long prompt was in prefill. A gap that reaches into a
    window counts whole: the token that ends it is the one that waited for the prefill.

    Args:
        windows: in order, without overlaps.
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
    """The limits in seconds that every latency of a good request keeps; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    """Limit of the request's largest gap."""
    e2e: float | None = None

    def is_good(self, record: Record) -> bool:
        if record.failed or not record.arrivals:
            return False
        largest_gap = max((gap.seconds for gap in gaps(record)), default=None)
        pairs = (
            (self.ttft, ttft(record)),
            (self.tpot, tpot(record)),
            (self.itl, largest_gap),
            (self.e2e, e2e(record)),
        )
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of one class of requests."""

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

    def named(self) -> dict[str, Spread]:
        """Return the latencies under the names that table, report and comparison show."""
        return {
            "TTFT": self.ttft,
            "TTFT after send": self.ttft_after_send,
            "TPOT": self.tpot,
            "ITL": self.itl,
            "end to end": self.e2e,
            "end to end after send": self.e2e_after_send,
            "add request": self.add,
            "client late": self.late,
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one run."""

    seconds: float
    """Seconds from the first request that was due to the last token or failure."""
    requests: int
    failed: int
    prompt_tokens: int
    """Prompt tokens of requests that had a token."""
    cached_tokens: int | None
    """Cached tokens; None if the target does not say."""
    output_tokens: int
    input_per_second: float
    output_per_second: float
    requests_per_second: float
    """Requests that did not fail."""
    good: int | None
    """Good requests; None without limits."""
    good_per_second: float | None
    bundled_tokens: int
    """Tokens that came in an event after another token of the same event."""
    bundled_events: int
    """Events with more than one token."""
    events: int
    together: int
    """Tokens that came in an event of their own, but in the same read as the request's token before."""
    short_answers: int
    """Requests that did not fail and have fewer tokens than requested."""
    all: Latencies
    by_kind: dict[str, Latencies]
    windows: int
    window_seconds: float
    itl_in_windows: Spread
    itl_outside: Spread

    @property
    def cached_share(self) -> float:
        """The share of the prompt tokens found in the cache, 0 to 1; 0 if the target does not say."""
        return (self.cached_tokens or 0) / max(1, self.prompt_tokens)


def summarize(records: Sequence[Record], goodput: Goodput | None = None) -> Summary:
    """Return the numbers of a run's requests, at least one."""
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
        window_seconds=sum(window.seconds for window in windows),
        itl_in_windows=spread(inside),
        itl_outside=spread(outside),
    )


def latencies(records: Sequence[Record]) -> Latencies:
    def of(metric: Callable[[Record], float | None]) -> Spread:
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
    """The requests that failed in one way."""

    kind: str
    count: int
    message: str
    """The message of the first."""
    longest_wait: float
    """Longest time in seconds from a request's last token, or from when it was due, until it failed.

    No percentile holds this latency, which would have been at least as long."""


def errors(records: Iterable[Record]) -> list[Errors]:
    """Return the failures by kind, most frequent first."""
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
    """Read the limits of a good request.

    Args:
        text: "ttft:500 itl:100", limits in milliseconds.

    Raises:
        ConfigError: a name is unknown or given twice, or a limit is no number.
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
    reported = [record.cached_tokens for record in records if record.cached_tokens is not None]
    return sum(reported) if reported else None


def _together(record: Record) -> int:
    return sum(after.at == before.at for before, after in pairwise(record.arrivals))
