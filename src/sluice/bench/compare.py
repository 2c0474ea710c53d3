"""Two results against each other: ratios of their numbers, and how sure they are.

With several runs of each, what varies is the run: ratios are resampled over the repeats (bootstrap; B. Efron and R.
Tibshirani, An Introduction to the Bootstrap, 1993). The percentiles of few repeats make too narrow an interval, so
they are taken further out (the expanded percentile interval of T. Hesterberg, What Teachers Should Know About the
Bootstrap, The American Statistician 69(4), 2015). Runs that were measured in turns are
resampled in pairs, so what slowed both sides of a pair cancels. With one run of each, its requests are resampled:
that knows nothing of how one run differs from the next, and the interval says so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from sluice.bench.metrics import Latencies, Spread, Summary, percentile, summarize
from sluice.bench.records import Record, Result, served

RESAMPLES = 10_000
REQUEST_RESAMPLES = 200
MOST_TOKENS = 4_000_000
"""Resampling requests computes every number again: fewer times, if there are many tokens."""
LEAST_RESAMPLES = 40
CONFIDENCE = 95
ENOUGH_RUNS = 5
"""Intervals never reach beyond the runs there are. One in four times three runs lie all on the same side of the truth,
one in sixteen times five do: from here on a side is called better."""
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)
"""97.5% quantiles of Student's t for 1, 2, ... degrees of freedom; above, 1.96 + 2.5 / degrees is as good."""
SEED = 0
CACHED_MATTERS = 0.02
"""Shares of prompt tokens from a cache are not the same if they differ by more."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One number of both. `ratio` is other / base."""

    name: str
    unit: str
    base: float
    other: float
    ratio: float
    low: float | None
    high: float | None
    """Ends of the 95% interval of the ratio; None where it cannot be said."""
    bigger_is_better: bool = False

    is_clear: bool = False
    """There are enough runs, and the interval leaves 1 out."""

    @property
    def is_better(self) -> bool:
        return (self.ratio > 1.0) == self.bigger_is_better


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two results say of each other."""

    base: str
    other: str
    resampled: str
    """What the intervals are over: "pairs of runs", "runs" or "requests"."""
    runs: tuple[int, int]
    ratios: tuple[Ratio, ...]
    differences: tuple[str, ...]
    """Settings of the workload that are not the same: then the ratios compare two things at once."""


Number = Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that is compared."""

    name: str
    unit: str
    of: Number
    bigger_is_better: bool = False


def compare(base: Result, other: Result, *, paired: bool = False) -> Comparison:
    """
    Args:
        paired: the runs were measured in turns, first base, then other; there must be as many of each.
    """
    before, after = ([summarize(run.requests) for run in result.runs] for result in (base, other))
    assert not paired or len(before) == len(after), f"{len(before)} runs against {len(after)}"
    enough = min(len(before), len(after)) > 1
    resampled = "requests" if not enough else "pairs of runs" if paired else "runs"
    by_requests = None if enough else _resampled_summaries(base.runs[0].requests, other.runs[0].requests)
    ratios = []
    for measure in measures(before + after):
        ours = [value for value in map(measure.of, before) if value is not None]
        theirs = [value for value in map(measure.of, after) if value is not None]
        # A ratio of a zero says nothing; bundled tokens make zeros of ITL medians.
        if len(ours) < len(before) or len(theirs) < len(after) or min(ours + theirs) <= 0:
            continue
        ratio = _mean(theirs) / _mean(ours)
        if by_requests is not None:
            drawn = [_quotient(measure.of(a), measure.of(b)) for a, b in by_requests]
        else:
            drawn = list(_resampled_ratios(ours, theirs, paired))
        count = min(len(ours), len(theirs)) if enough else len(base.runs[0].requests)
        low, high = interval([value for value in drawn if value is not None], count)
        is_clear = min(len(ours), len(theirs)) >= ENOUGH_RUNS and not (low or 0.0) <= 1.0 <= (high or math.inf)
        ratios.append(
            Ratio(
                measure.name,
                measure.unit,
                _mean(ours),
                _mean(theirs),
                ratio,
                low,
                high,
                measure.bigger_is_better,
                is_clear,
            )
        )
    return Comparison(
        base=_label(base),
        other=_label(other),
        resampled=resampled,
        runs=(len(before), len(after)),
        ratios=tuple(ratios),
        differences=(*_differences(base, other), *_cached(before, after)),
    )


def measures(summaries: Sequence[Summary]) -> list[Measure]:
    """What is compared: of all requests, of every class that is in all runs, and inside prefill windows."""
    found = [
        Measure("output tokens/s", "", lambda summary: summary.output_per_second, bigger_is_better=True),
        Measure("requests/s", "", lambda summary: summary.requests_per_second, bigger_is_better=True),
        *_latency_measures("", lambda summary: summary.all),
    ]
    kinds = [kind for kind in summaries[0].by_kind if all(kind in summary.by_kind for summary in summaries)]
    if len(kinds) > 1:
        for kind in kinds:
            found += _latency_measures(f"{kind}: ", _of_kind(kind))
    if all(summary.windows for summary in summaries):
        found += [
            Measure("ITL p50 in long prefills", "ms", lambda summary: summary.itl_in_windows.p50),
            Measure("ITL p99 in long prefills", "ms", lambda summary: summary.itl_in_windows.p99),
            Measure("ITL max in long prefills", "ms", lambda summary: summary.itl_in_windows.max),
        ]
    return found


def _of_kind(kind: str) -> Callable[[Summary], Latencies]:
    return lambda summary: summary.by_kind[kind]


METRICS: Mapping[str, Callable[[Latencies], Spread]] = {
    "TTFT": lambda latencies: latencies.ttft,
    "TPOT": lambda latencies: latencies.tpot,
    "ITL": lambda latencies: latencies.itl,
    "end to end": lambda latencies: latencies.e2e,
}
STATISTICS: Mapping[str, Callable[[Spread], float | None]] = {
    "mean": lambda values: values.mean,
    "p50": lambda values: values.p50,
    "p99": lambda values: values.p99,
    "max": lambda values: values.max,
}


def _latency_measures(prefix: str, latencies: Callable[[Summary], Latencies]) -> list[Measure]:
    def number(metric: str, statistic: str) -> Number:
        return lambda summary: STATISTICS[statistic](METRICS[metric](latencies(summary)))

    return [
        Measure(f"{prefix}{metric} {statistic}", "ms", number(metric, statistic))
        for metric in METRICS
        for statistic in STATISTICS
        if statistic != "max" or metric == "ITL"
    ]


def _resampled_ratios(ours: Sequence[float], theirs: Sequence[float], paired: bool) -> Iterator[float]:
    rng = random.Random(SEED)
    for _ in range(RESAMPLES):
        mine = rng.choices(range(len(ours)), k=len(ours))
        others = mine if paired else rng.choices(range(len(theirs)), k=len(theirs))
        yield _mean([theirs[index] for index in others]) / _mean([ours[index] for index in mine])


def _resampled_summaries(ours: Sequence[Record], theirs: Sequence[Record]) -> list[tuple[Summary, Summary]]:
    rng = random.Random(SEED)
    tokens = sum(record.num_tokens for record in (*ours, *theirs))
    count = min(REQUEST_RESAMPLES, max(LEAST_RESAMPLES, MOST_TOKENS // max(1, tokens)))
    return [(summarize(_redrawn(ours, rng)), summarize(_redrawn(theirs, rng))) for _ in range(count)]


def _redrawn(records: Sequence[Record], rng: random.Random) -> list[Record]:
    """As many of each class as there were: two long prompts among a thousand short ones are never none."""
    kinds = dict.fromkeys(record.kind for record in records)
    own = [[record for record in records if record.kind == kind] for kind in kinds]
    return [record for group in own for record in rng.choices(group, k=len(group))]


def interval(drawn: Sequence[float], count: int) -> tuple[float | None, float | None]:
    """The 95% interval from resampled values.

    Args:
        count: how many there were to resample.
    """
    if len(drawn) < 2 or count < 2:
        return None, None
    ordered = sorted(drawn)
    tail = 100 * expanded_tail(count)
    return percentile(ordered, tail), percentile(ordered, 100 - tail)


def expanded_tail(count: int) -> float:
    """The share of resampled values to leave out at each end: below 2.5%, and near it for many."""
    freedom = count - 1
    quantile = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else 1.96 + 2.5 / freedom
    return NormalDist().cdf(-quantile * math.sqrt(count / freedom))


def _quotient(ours: float | None, theirs: float | None) -> float | None:
    return None if not ours or theirs is None else theirs / ours


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _label(result: Result) -> str:
    return f"{served(result.target)} at {result.target['url'] or 'in process'}"


def _cached(before: Sequence[Summary], after: Sequence[Summary]) -> Iterator[str]:
    """One side that had the prompts before is not the faster one."""
    told = all(summary.cached_tokens is not None for summary in (*before, *after))
    ours, theirs = (_mean([summary.cached_share for summary in side]) for side in (before, after))
    if told and abs(ours - theirs) > CACHED_MATTERS:
        yield f"prompt tokens found in the server's cache: {100 * ours:.0f}% against {100 * theirs:.0f}%"


def _differences(base: Result, other: Result) -> Iterator[str]:
    ours, theirs = base.settings.get("workload", {}), other.settings.get("workload", {})
    for name in [*ours, *(theirs.keys() - ours.keys())]:
        if ours.get(name) != theirs.get(name):
            yield f"{name}: {ours.get(name)!r} against {theirs.get(name)!r}"
    for name in base.machine.keys() - {"load_average"}:
        if base.machine[name] != other.machine.get(name):
            yield f"{name} of the machine: {base.machine[name]!r} against {other.machine.get(name)!r}"
