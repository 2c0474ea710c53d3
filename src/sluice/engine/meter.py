"""Counts of what an engine has done since it began, and histograms of its times.

Times of a request are measured here, because requests wait in the engine: the server does not know for how long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.engine.prompt_meter import PromptMeter, PromptProgress
from sluice.engine.trace import StepTimes
from sluice.types import BatchPlan, BatchResult, Bound, Output, PredictedStep, Regime

STEP_TOKENS: tuple[float, ...] = tuple(1 << power for power in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
STEP_SECONDS: tuple[float, ...] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_SECONDS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""vLLM's buckets for times of a request, with finer ones at the lower end."""
LATE_BY: tuple[float, ...] = (0.0, 0.1, 0.25)
"""Shares of the target."""


class Tally(NamedTuple):
    """The content of a histogram."""

    bounds: tuple[float, ...]
    """Upper ends of all buckets but the last, which has none."""
    counts: tuple[int, ...]
    """Values in each bucket: one more than `bounds`, not accumulated."""
    total: float
    """Sum of the values."""


class Histogram:
    """Counts values in fixed buckets.

    Args:
        bounds: upper ends, growing; a value belongs to the first bucket that is not below it.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def tally(self) -> Tally:
        return Tally(self._bounds, tuple(self._counts), self._total)


class PaceTotals(NamedTuple):
    """Predicted and measured times of the steps of one kind, in seconds."""

    steps: int = 0
    predicted: float = 0.0
    measured: float = 0.0
    error: float = 0.0
    """Sum of the differences, without their signs."""


class ItlTotals(NamedTuple):
    """How steps keep the ITL target."""

    target: float
    """Seconds that the latest step could take."""
    margin: float
    """Predicted time of the latest step at the quantile over its prediction."""
    regimes: dict[Regime, PaceTotals]
    """Steps by their kind (`PredictedStep.regime`)."""
    late: tuple[int, ...]
    """Steps with streams that took longer than a feasible target, by more than each of `LATE_BY`."""
    infeasible: int
    """Steps whose decodes, with the smallest chunk if they hold prefill, were predicted to exceed it."""


class GrammarTotals(NamedTuple):
    """Counts of grammars since the engine began."""

    hits: int = 0
    """Requests whose grammar another one had brought before."""
    misses: int = 0
    """Requests whose grammar had to be compiled."""
    failed: int = 0
    """Grammars that could not be compiled, or not in time."""
    evicted: int = 0
    """Compiled grammars that were dropped to make room."""
    seconds: float = 0.0
    """Seconds spent compiling."""

    def events(self) -> dict[str, float]:
        """Return the counts by a name for each."""
        return {"hit": self.hits, "miss": self.misses, "failed": self.failed, "evicted": self.evicted}


class DraftTotals(NamedTuple):
    """Counts of drafts since the engine began, without those of steps and rows that failed, and of those behind a token
    that ended a request."""

    rows: int = 0
    """Rows with drafts."""
    drafted: int = 0
    """Drafts of these rows."""
    accepted: int = 0
    """Drafts that were accepted."""
    accepted_at: tuple[int, ...] = ()
    """Accepted ones by their position in the row, the first one first, as far as there were any drafts."""


class RingTotals(NamedTuple):
    """What was loaded for contexts longer than the device since the engine began."""

    bytes: int = 0
    seconds: float = 0.0
    """Seconds spent loading."""
    waited: float = 0.0
    """Seconds in which a chunk could not continue because its blocks had not come."""
    bounds_bytes: int = 0
    """What a sparse policy keeps of pages now."""


class Totals(NamedTuple):
    """Counts since the engine began."""

    steps: int = 0
    failed_steps: int = 0
    decode_tokens: int = 0
    """Tokens decoded, one for each decode row."""
    prefill_chunks: int = 0
    prefill_tokens: int = 0
    blocks: int = 0
    """Blocks that were filled in, by a model that does."""
    passes: int = 0
    """Passes that these blocks took."""
    bound_by: tuple[int, ...] = ()
    """Steps by the limit that bound them, in the order of `Bound`."""
    itl: ItlTotals | None = None
    """Totals of the ITL target; None if there is none, and before the first step."""
    tokens: Tally | None = None
    """Tokens of a step, decodes, drafts and prefill."""
    step_seconds: Tally | None = None
    """Time in the runner for a step."""
    queue_seconds: Tally | None = None
    """Seconds from a request's arrival to the launch of its first step."""
    prefill_seconds: Tally | None = None
    """Seconds from the launch of its first step to its first token, or its embedding."""
    decode_seconds: Tally | None = None
    """Seconds from its first token to its end."""
    inference_seconds: Tally | None = None
    """Seconds from the launch of its first step to its end, if it got a token or its embedding."""
    grammars: GrammarTotals = GrammarTotals()
    drafts: DraftTotals = DraftTotals()
    prefill_squares: int = 0
    """Sum of the squares of the prefill tokens of the steps that were timed."""
    prefill_products: float = 0.0
    """Sum of these tokens times the seconds of their step. Over the squares it is what a token takes in large steps."""
    ring: RingTotals = RingTotals()


@dataclass(slots=True)
class _Times:
    """Times of an open request."""

    arrived: float
    began: float | None = None
    first: float | None = None


class ItlMeter:
    """Compares how long steps took with what was predicted."""

    def __init__(self) -> None:
        self._latest: PredictedStep | None = None
        self._regimes: dict[Regime, PaceTotals] = {}
        self._late = [0] * len(LATE_BY)
        self._infeasible = 0

    def ended(self, pace: PredictedStep, micros: int, *, has_streams: bool) -> None:
        """Count a step that was timed."""
        self._latest = pace
        seen = self._regimes.get(pace.regime, PaceTotals())
        predicted, measured = pace.predicted / 1e6, micros / 1e6
        self._regimes[pace.regime] = PaceTotals(
            seen.steps + 1,
            seen.predicted + predicted,
            seen.measured + measured,
            seen.error + abs(predicted - measured),
        )
        self._infeasible += pace.is_infeasible
        if has_streams and pace.target and not pace.is_infeasible:
            for index, share in enumerate(LATE_BY):
                self._late[index] += micros > pace.target * (1 + share)

    def totals(self) -> ItlTotals | None:
        latest = self._latest
        if latest is None:
            return None
        margin = latest.at_quantile / max(1, latest.predicted)
        return ItlTotals(latest.target / 1e6, margin, dict(self._regimes), tuple(self._late), self._infeasible)


class DraftMeter:
    """Counts drafts."""

    def __init__(self) -> None:
        self._rows = self._drafted = 0
        self._accepted_at: list[int] = []

    def sent(self, output: Output) -> None:
        """Count the drafts of the row that an output is of, which has some."""
        self._rows += 1
        self._drafted += output.num_drafted
        self._accepted_at += [0] * (output.num_drafted - len(self._accepted_at))
        for position in range(output.num_accepted):
            self._accepted_at[position] += 1

    def totals(self) -> DraftTotals:
        return DraftTotals(self._rows, self._drafted, sum(self._accepted_at), tuple(self._accepted_at))


class Meter:
    """Counts steps and times requests. Times are seconds of the engine's clock."""

    def __init__(self) -> None:
        self._open: dict[int, _Times] = {}
        self._steps = self._failed = self._decodes = self._chunks = self._prefill = self._blocks = self._passes = 0
        self._squares, self._products = 0, 0.0
        self._bound_by = dict.fromkeys(Bound, 0)
        self._itl = ItlMeter()
        self._drafts = DraftMeter()
        self._prompts = PromptMeter()
        self._tokens = Histogram(STEP_TOKENS)
        self._step_seconds = Histogram(STEP_SECONDS)
        self._queue = Histogram(REQUEST_SECONDS)
        self._to_first = Histogram(REQUEST_SECONDS)
        self._to_end = Histogram(REQUEST_SECONDS)
        self._inference = Histogram(REQUEST_SECONDS)

    @property
    def num_open(self) -> int:
        """Requests that are being timed."""
        return len(self._open)

    def arrived(self, request_id: int, now: float) -> None:
        """Count a request that was queued."""
        self._open[request_id] = _Times(now)

    def planned(self, plan: BatchPlan, now: float) -> None:
        """Count a step that is about to be launched."""
        self._prompts.planned(plan, now)
        for slot in plan.new_slots:
            times = self._open.get(slot.request_id)
            if times is not None and times.began is None:
                times.began = now
                self._queue.add(now - times.arrived)

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        """Count a step that ended. A result of None means that it failed as a whole."""
        self._prompts.ended(plan, times.ended_at)
        tokens, decodes, failed = plan.num_tokens, plan.num_decoded, result is None
        self._steps += 1
        self._failed += failed
        self._decodes += decodes
        self._chunks += len(plan.chunks) - decodes
        of_offloaded = sum(part.chunk.length for part in plan.slices if part.completes and part.is_decode)
        prefill = sum(chunk.length for chunk in plan.chunks[plan.num_decodes :]) - of_offloaded
        self._prefill += prefill
        if times.micros and not failed:
            done = prefill if not plan.slices else prefill_done(plan)
            self._squares += done * done
            self._products += done * times.micros / 1e6
        self._bound_by[plan.bound_by] += 1
        self._tokens.add(tokens)
        self._step_seconds.add(times.launch_seconds + times.wait_seconds)
        if plan.pace is not None and not failed:
            self._itl.ended(plan.pace, times.micros, has_streams=decodes > 0)

    def sent(self, outputs: Sequence[Output], now: float) -> None:
        """Count outputs that are about to be sent."""
        self._prompts.sent(outputs)
        for output in outputs:
            self._blocks += output.num_passes > 0
            self._passes += output.num_passes
            if output.num_drafted:
                self._drafts.sent(output)
            if output.start == 0 and (output.token_ids or output.embedding):
                self._first_token(output.request_id, now)
            if output.finish_reason is not None:
                times = self._open.pop(output.request_id, None)
                if times is not None and times.began is not None and times.first is not None:
                    if not output.embedding:
                        self._to_end.add(now - times.first)
                    self._inference.add(now - times.began)

    def _first_token(self, request_id: int, now: float) -> None:
        times = self._open.get(request_id)
        if times is not None and times.began is not None:
            times.first = now
            self._to_first.add(now - times.began)

    def progress(self) -> tuple[PromptProgress, ...]:
        """Return how far the prompts are read that are not complete."""
        return self._prompts.progress()

    def totals(self) -> Totals:
        return Totals(
            steps=self._steps,
            failed_steps=self._failed,
            decode_tokens=self._decodes,
            prefill_chunks=self._chunks,
            prefill_tokens=self._prefill,
            prefill_squares=self._squares,
            prefill_products=self._products,
            bound_by=tuple(self._bound_by.values()),
            tokens=self._tokens.tally(),
            step_seconds=self._step_seconds.tally(),
            queue_seconds=self._queue.tally(),
            prefill_seconds=self._to_first.tally(),
            decode_seconds=self._to_end.tally(),
            inference_seconds=self._inference.tally(),
            itl=self._itl.totals(),
            drafts=self._drafts.totals(),
            blocks=self._blocks,
            passes=self._passes,
        )


def prefill_done(plan: BatchPlan) -> int:
    """Return the prefill tokens of a step with slices, each of which is its share of the tokens of its chunk."""
    own = plan.whole_chunks[plan.num_decodes :]
    shares = (part.chunk.length * (part.stop - part.first) / part.total for part in plan.slices if not part.is_decode)
    return sum(chunk.length for chunk in own) + round(sum(shares))
