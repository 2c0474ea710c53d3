"""One run of an engine over a mix, in this process: every step with its time, and every token."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from benchmarks.itl.mixes import LONG, Asked
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.pacing import pacing_of
from sluice.config import EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.trace import StepTimes
from sluice.scheduler.cost import CostPrior
from sluice.testing import ManualLink
from sluice.tracing.file import TraceReader, create
from sluice.tracing.replay import replay
from sluice.types import BatchPlan, BatchResult, Regime, SamplingParams, Submit

MARGINS = (0.1, 0.25)
Target = float | Literal["auto"] | None
"""Seconds, or four decode steps as they were learnt, or a fixed chunk instead."""
WARM = 30
"""Steps of a regime before its prediction errors count."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that ran."""

    regime: Regime
    prefill: int
    micros: int
    predicted: int | None
    target: int | None
    is_infeasible: bool


@dataclass
class Steps:
    """A trace sink that keeps steps."""

    inner: Any
    steps: list[Step] = field(default_factory=list)

    @property
    def latest(self) -> Any:
        return self.inner.latest

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        prefill, pace = plan.num_tokens - plan.num_decodes, plan.pace
        mixed = Regime.MIXED if plan.num_decodes else Regime.PREFILL
        regime = (mixed if prefill else Regime.DECODE) if pace is None else pace.regime
        numbers = (None, None, False) if pace is None else (pace.predicted, pace.target, pace.is_infeasible)
        self.steps.append(Step(regime, prefill, times.micros, *numbers))
        self.inner.ended(plan, result, times)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class Run:
    """What was measured over one mix."""

    seconds: float
    tokens: int
    """Prompt and output."""
    itl: tuple[float, ...]
    """Seconds between tokens, sorted."""
    ttft: tuple[float, ...]
    """Of long prompts, or of all that arrived later if none was long; seconds."""
    steps: tuple[Step, ...]
    replays: bool | None
    """Whether the trace was planned again byte for byte; None without one."""


class Machine:
    """A model that is loaded once, and engines with different options over it."""

    def __init__(self, model: str, **options: Any) -> None:
        self._loaded = load(EngineConfig.from_options({"model": model, **options}), progress=False)

    def configured(self, *, chunk: int | None, target: Target, prior: float) -> LoadedModel:
        """Return the model with a fixed chunk, or with a target and a prior that is wrong by a factor."""
        info, loaded = self._loaded.info, self._loaded
        scheduler = info.config.scheduler
        if target is None:
            assert chunk is not None
            scheduler = replace(scheduler, chunked_prefill_size=chunk, max_batch_tokens=chunk + 64, itl_target=None)
        else:
            named = target if isinstance(target, str) else f"{round(target * 1e6)}us"
            scheduler = replace(scheduler, itl_target=named)
        config = replace(info.config, scheduler=scheduler)
        pacing = pacing_of(config, loaded.spec, info.kv_sizes, info.memory.weights_bytes, loaded.graph_rows)
        if pacing is not None:
            pacing = replace(pacing, prior=CostPrior(*(prior * each for each in pacing.prior.values)))
        return replace(loaded, info=replace(info, config=config), pacing=pacing)

    def run(
        self,
        asked: Sequence[Asked],
        decode: float,
        *,
        chunk: int | None = None,
        target: Target = None,
        prior: float = 1.0,
        trace: Path | None = None,
        before_step: Any = None,
    ) -> Run:
        """Serve a mix.

        Args:
            decode: seconds of the undisturbed decode step.
            trace: file to record to, which is then replayed.
            before_step: called with the number of steps so far.
        """
        link = ManualLink()
        if trace is not None:
            create(trace)
        engine = self.configured(chunk=chunk, target=target, prior=prior).engine(link, trace=trace)
        steps = engine.trace = Steps(engine.trace)
        arrived, times = serve(engine, link, asked, decode, steps, before_step)
        engine.close()
        is_equal = None
        if trace is not None:
            with TraceReader(trace) as reader:
                is_equal = replay(reader).divergence is None
        return measured(asked, arrived, times, steps.steps, is_equal)

    def decode_steps(self, rows: int, count: int = 40) -> list[float]:
        """Return the seconds of repeated equal steps: so many rows that decode, and nothing else."""
        asked = [Asked(0.0, 40, count + 8)] * rows
        found = self.run(asked, 0.0, chunk=256)
        return [step.micros / 1e6 for step in found.steps if not step.prefill][4:]


def serve(
    engine: Engine, link: ManualLink, asked: Sequence[Asked], decode: float, steps: Steps, before_step: Any
) -> tuple[list[float], list[list[float]]]:
    """Send the requests as they arrive, until all have ended. Returns their arrivals, and the times of their tokens."""
    draw, began, sent = random.Random(0), time.perf_counter(), 0
    arrived: list[float] = []
    times: list[list[float]] = [[] for _ in asked]
    while sent < len(asked) or not engine.is_idle:
        now = time.perf_counter()
        if engine.is_idle and sent < len(asked) and asked[sent].at * decode > now - began:
            time.sleep(asked[sent].at * decode - (now - began))
            now = time.perf_counter()
        while sent < len(asked) and asked[sent].at * decode <= now - began:
            prompt = tuple(draw.randrange(5, 400) for _ in range(asked[sent].prompt))
            sampling = SamplingParams(max_tokens=asked[sent].outputs, temperature=0, ignore_eos=True)
            link.put(Submit(sent, prompt, sampling.resolved(eos_ids=frozenset(), room=10**6, seed=0)))
            arrived.append(max(began + asked[sent].at * decode, began))
            sent += 1
        if before_step is not None:
            before_step(len(steps.steps))
        engine.step()
        now = time.perf_counter()
        for output in link.outputs:
            times[output.request_id].extend([now] * len(output.token_ids))
        link.outputs.clear()
    return arrived, times


def measured(
    asked: Sequence[Asked],
    arrived: Sequence[float],
    times: Sequence[Sequence[float]],
    steps: Sequence[Step],
    replays: bool | None,
) -> Run:
    itl = sorted(b - a for own in times for a, b in pairwise(own))
    later = [index for index, each in enumerate(asked) if each.at > 0]
    long = [index for index in later if asked[index].prompt >= LONG] or later
    tokens = sum(each.prompt + each.outputs for each in asked)
    ends = [own[-1] for own in times]
    ttft = tuple(times[index][0] - arrived[index] for index in long)
    return Run(max(ends) - min(arrived), tokens, tuple(itl), ttft, tuple(steps), replays)


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def errors_of(steps: Sequence[Step]) -> dict[str, float]:
    """Return the mean relative error of predictions by regime, after the first steps of each."""
    found = {}
    for regime in Regime:
        own = [step for step in steps if step.regime is regime and step.predicted is not None][WARM:]
        if own:
            found[regime.value] = statistics.mean(abs((step.predicted or 0) / step.micros - 1) for step in own)
    return found


def spread_of(seconds: Sequence[float]) -> float:
    """Return the mean relative distance of repeated equal steps from their local median."""
    local = [statistics.median(seconds[max(0, at - 4) : at + 5]) for at in range(len(seconds))]
    return statistics.mean(abs(each / middle - 1) for each, middle in zip(seconds, local, strict=True))


def figures(run: Run) -> dict[str, Any]:
    """Return the numbers of a run; the late steps are those with a target of their own."""
    of_all = [step for step in run.steps if step.regime is Regime.MIXED]
    mixed = [step for step in of_all if not step.is_infeasible]
    ratios = [step.micros / step.target for step in mixed if step.target]
    found: dict[str, Any] = {
        "seconds": run.seconds,
        "tokens_per_second": run.tokens / run.seconds,
        "itl": {name: quantile(run.itl, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
        "itl_max": max(run.itl, default=0.0),
        "ttft_mean": statistics.mean(run.ttft),
        "mixed_steps": len(mixed),
        "infeasible_steps": sum(step.is_infeasible for step in run.steps),
        "is_infeasible": 2 * len(mixed) < len(of_all),
        "errors": errors_of(run.steps),
        "replays": run.replays,
    }
    if ratios:
        for margin in MARGINS:
            found[f"late_{margin:.0%}"] = sum(ratio > 1 + margin for ratio in ratios) / len(ratios)
        found["worst_of_first_50"] = max(ratios[:50])
    return found
