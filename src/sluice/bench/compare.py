"""Compares two results: the ratios of their numbers, their confidence intervals, and the table of both.

With several runs of each, ratios are resampled over the runs (bootstrap; B. Efron and R. Tibshirani, An Introduction to
the Bootstrap, 1993). The percentiles of few runs make too narrow an interval, so they are taken further out (the
expanded percentile interval of T. Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician
69(4), 2015). Runs that were measured in turns are resampled in pairs, so what slowed both sides of a pair cancels. With
one run of each, its requests are resampled. That does not show how one run differs from the next, and the table says
so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

from sluice.bench.metrics import Latencies, Summary, percentile, summarize
from sluice.bench.records import Record
from sluice.bench.report import CACHED_MATTERS, milliseconds
from sluice.bench.results import BenchResult, served

RESAMPLES = 10_000
REQUEST_RESAMPLES = 200
MOST_TOKENS = 4_000_000
"""Resampling requests computes every number again, so there are fewer resamples of many tokens."""
LEAST_RESAMPLES = 40
CONFIDENCE = 95
ENOUGH_RUNS = 5
"""Runs from which on a side is called better. Intervals never reach beyond the runs: all of three runs are on the same
side of the truth one time in four, all of five one time in sixteen."""
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)
"""97.5% quantiles of Student's t for 1, 2, ... degrees of freedom; above, 1.96 + 2.5 / degrees is as good."""
SEED = 0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A number of both results. `ratio` is other / base."""

    name: str
    unit: str
    base: float
    other: float
    ratio: float
    low: float | None
    high: float | None
    """Ends of the ratio's 95% interval; None where it is unknown."""
    bigger_is_better: bool = False
    is_clear: bool = False
    """True if there are enough runs, and 1 is not in the interval."""

    @property
    def is_better(self) -> bool:
        return (self.ratio > 1.0) == self.bigger_is_better


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratios of two results, and what is not the same in both."""

    base: str
    other: str
    resampled: str
    """What was resampled for the intervals: "pairs of runs", "runs" or "requests"."""
    runs: tuple[int, int]
    ratios: tuple[Ratio, ...]
    differences: tuple[str, ...]
    """Settings that are not the same: then the ratios compare two things at once."""


Number = Callable[[Summary], float | None]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run that is compared."""

    name: str
    unit: str
    of: Number
    bigger_is_better: bool = False


def compare(base: BenchResult, other: BenchResult, *, paired: bool = False) -> Comparison:
    """Compare all numbers that both results have.

    Args:
        paired: the runs were measured in turns, first base, then other; there must be as many of each.
    """
    before, after = ([summarize(run.requests) for run in result.runs] for result in (base, other))
    assert not paired or len(before) == len(after), f"{len(before)} runs against {len(after)}"
    has_repeats = min(len(before), len(after)) > 1
    drawn = [] if has_repeats else _resampled_summaries(base.runs[0].requests, other.runs[0].requests)
    ratios = []
    for measure in measures(before + after):
        ours = [value for value in map(measure.of, before) if value is not None]
        theirs = [value for value in map(measure.of, after) if value is not None]
        # A ratio of a zero means nothing; bundled tokens make zeros of ITL medians.
        if len(ours) < len(before) or len(theirs) < len(after) or min(ours + theirs) <= 0:
            continue
        if has_repeats:
            count = min(len(ours), len(theirs))
            low, high = interval(list(_resampled_ratios(ours, theirs, paired)), count)
        else:
            count = len(base.runs[0].requests)
            quotients = [_quotient(measure.of(one), measure.of(two)) for one, two in drawn]
            low, high = interval([value for value in quotients if value is not None], count)
        ratios.append(
            Ratio(
                name=measure.name,
                unit=measure.unit,
                base=_mean(ours),
                other=_mean(theirs),
                ratio=_mean(theirs) / _mean(ours),
                low=low,
                high=high,
                bigger_is_better=measure.bigger_is_better,
                is_clear=min(len(ours), len(theirs)) >= ENOUGH_RUNS and not (low or 0.0) <= 1.0 <= (high or math.inf),
            )
        )
    return Comparison(
        base=_label(base),
        other=_label(other),
        resampled="requests" if not has_repeats else "pairs of runs" if paired else "runs",
        runs=(len(before), len(after)),
        ratios=tuple(ratios),
        differences=(*_differences(base, other), *_cached(before, after)),
    )


def measures(summaries: Sequence[Summary]) -> list[Measure]:
    """Return the numbers to compare: of all requests, of each class that is in all runs, and inside prefill windows."""
    found = [
        Measure("output tokens/s", "", lambda summary: summary.output_per_second, bigger_is_better=True),
        Measure("requests/s", "", lambda summary: summary.requests_per_second, bigger_is_better=True),
        *_latency_measures("", lambda summary: summary.all),
    ]
    kinds = [kind for kind in summaries[0].by_kind if all(kind in summary.by_kind for summary in summaries)]
    if len(kinds) > 1:
        for kind in kinds:
            found += _latency_measures(f"{kind}: ", partial(_of_kind, kind))
    if all(summary.windows for summary in summaries):
        found += [
            Measure(f"ITL {statistic} in long prefills", "ms", partial(_in_windows, statistic))
            for statistic in ("p50", "p99", "max")
        ]
    return found


def _latency_measures(prefix: str, latencies: Callable[[Summary], Latencies]) -> list[Measure]:
    def number(metric: str, statistic: str) -> Number:
        return lambda summary: latencies(summary).named()[metric].figures()[statistic]

    return [
        Measure(f"{prefix}{metric} {statistic}", "ms", number(metric, statistic))
        for metric in ("TTFT", "TPOT", "ITL", "end to end")
        for statistic in ("mean", "p50", "p99", "max")
        if statistic != "max" or metric == "ITL"
    ]


def _of_kind(kind: str, summary: Summary) -> Latencies:
    return summary.by_kind[kind]


def _in_windows(statistic: str, summary: Summary) -> float | None:
    return summary.itl_in_windows.figures()[statistic]


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
    """Draw as many of each class as there were, so that two long prompts among a thousand short ones are never none."""
    kinds = dict.fromkeys(record.kind for record in records)
    own = [[record for record in records if record.kind == kind] for kind in kinds]
    return [record for group in own for record in rng.choices(group, k=len(group))]


def interval(drawn: Sequence[float], count: int) -> tuple[float | None, float | None]:
    """Return the 95% interval from resampled values.

    Args:
        count: the number of values that were resampled.
    """
    if len(drawn) < 2 or count < 2:
        return None, None
    ordered = sorted(drawn)
    tail = 100 * expanded_tail(count)
    return percentile(ordered, tail), percentile(ordered, 100 - tail)


def expanded_tail(count: int) -> float:
    """Return the share of resampled values to leave out at each end: less than 2.5%, close to it for many values."""
    freedom = count - 1
    quantile = T_QUANTILES[freedom - 1] if freedom <= len(T_QUANTILES) else 1.96 + 2.5 / freedom
    return NormalDist().cdf(-quantile * math.sqrt(count / freedom))


def _quotient(ours: float | None, theirs: float | None) -> float | None:
    return None if not ours or theirs is None else theirs / ours


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _label(result: BenchResult) -> str:
    return f"{served(result.target)} at {result.target['url'] or 'in process'}"


def _cached(before: Sequence[Summary], after: Sequence[Summary]) -> Iterator[str]:
    """Report a side that found more of the prompts in its cache: it is not faster for that."""
    reported = all(summary.cached_tokens is not None for summary in (*before, *after))
    ours, theirs = (_mean([summary.cached_share for summary in side]) for side in (before, after))
    if reported and abs(ours - theirs) > CACHED_MATTERS:
        yield f"prompt tokens found in the server's cache: {100 * ours:.0f}% against {100 * theirs:.0f}%"


def _differences(base: BenchResult, other: BenchResult) -> Iterator[str]:
    ours, theirs = base.settings.get("workload", {}), other.settings.get("workload", {})
    for name in [*ours, *(theirs.keys() - ours.keys())]:
        if ours.get(name) != theirs.get(name):
            yield f"{name}: {ours.get(name)!r} against {theirs.get(name)!r}"
    for name in base.machine.keys() - {"load_average"}:
        if base.machine[name] != other.machine.get(name):
            yield f"{name} of the machine: {base.machine[name]!r} against {other.machine.get(name)!r}"


def table(comparison: Comparison) -> str:
    """Return the ratios as a table for a terminal."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    ours, theirs = comparison.runs
    yield f"base   {comparison.base} ({ours} run{'s' * (ours > 1)})"
    yield f"other  {comparison.other} ({theirs} run{'s' * (theirs > 1)})"
    yield ""
    yield f"{'':<28}{'base':>12}{'other':>12}{'other/base':>12}   {CONFIDENCE}% interval"
    for ratio in comparison.ratios:
        yield _line(ratio)
    yield ""
    yield f"Intervals are resampled over {comparison.resampled}."
    if comparison.resampled == "requests":
        yield "note: one run of each says nothing about how runs differ; use --repeats"
    elif min(comparison.runs) < ENOUGH_RUNS:
        yield f"note: with fewer than {ENOUGH_RUNS} runs of each the intervals are too narrow to call a side better"
    for difference in comparison.differences:
        yield f"note: not the same in both: {difference}"


def _line(ratio: Ratio) -> str:
    shown = [f"{value:.2f}" if ratio.unit == "" else milliseconds(value) for value in (ratio.base, ratio.other)]
    sure = "-" if ratio.low is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    verdict = ("  better" if ratio.is_better else "  worse") if ratio.is_clear else ""
    label = f"{ratio.name}, {ratio.unit}" if ratio.unit else ratio.name
    return f"{label:<28}{shown[0]:>12}{shown[1]:>12}{ratio.ratio:>12.3f}   {sure}{verdict}"
