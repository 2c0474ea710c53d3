"""What a pacer knows of a machine before its first step, and when what it learns is kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from sluice.assembly.cost_file import CostFile, Key, LearntEntry, read_costs, write_entry
from sluice.assembly.offloading import ATTENTION_COST
from sluice.config import ConfigError, EngineConfig
from sluice.engine.clock import Clock
from sluice.engine.protocols import Runner
from sluice.engine.trace import StepRecord, StepTimes, TraceSink
from sluice.models.spec import ModelSpec
from sluice.scheduler.cost import CostPrior, StepCost, StepLoad
from sluice.scheduler.pacer import LearntPacing, Pacer, Pacing
from sluice.scheduler.setup import SchedulerSetup
from sluice.types import CHUNKS_BY_TIME, DENSE, BatchPlan, BatchResult, ExpertCounts, Regime, SamplingParams, Submit
from sluice.types.footprint import KVSizes

LOGGER = logging.getLogger("sluice.engine")
SAVE_SECONDS = 10.0
LAST_SECONDS = 1.0
"""Seconds that an engine waits, when it ends, to write what it has learnt."""

CHUNKS = 8
"""Chunks of the prompt that is computed: the last ones show what attention costs."""
FIRST_STEP = -(1 << 30)
"""Ranks answer steps in ascending order, and those of the engine begin at 0."""


class Rates(NamedTuple):
    """What a usual machine does in a microsecond. Only the proportions matter, and they are soon replaced."""

    flops: float
    read_bytes: float
    """Bytes read from the device's memory."""
    load_bytes: float
    """Bytes loaded from host memory or a disk."""
    step: float
    """Microseconds of a step that computes nothing."""


RATES: Mapping[str, Rates] = {"cpu": Rates(3e5, 2e4, 2e3, 1000.0), "cuda": Rates(2e8, 2e6, 2.5e4, 3000.0)}


def prior_of(spec: ModelSpec, kv: KVSizes, weights_bytes: int, device_type: str) -> CostPrior:
    """Return the costs of a model's steps on a usual machine of a type."""
    rates = RATES[device_type]
    experts = spec.experts
    of_each = 0.0 if experts is None else experts.layers * experts.parameters * spec.weight_bytes
    held, chosen = (0, 0) if experts is None else (experts.count, experts.chosen)
    always = max(0.0, weights_bytes - held * of_each)
    token = 2 * (always + chosen * of_each) / spec.weight_bytes / rates.flops
    pair_flops = 4 * (spec.num_layers - spec.num_states) * spec.num_heads * spec.head_dim * ATTENTION_COST[device_type]
    return CostPrior(
        step=rates.step + always / rates.read_bytes,
        token=token,
        row=token / 4,
        key=max(kv.token_bytes, 1) / rates.read_bytes,  # no bytes where all layers have a window
        pair=pair_flops / rates.flops,
        byte=1 / rates.load_bytes,
        expert=max(of_each, 1.0) / rates.read_bytes,
    )


def counts_of(spec: ModelSpec) -> ExpertCounts:
    """Return how many experts a layer of a model has."""
    return DENSE if spec.experts is None else ExpertCounts(spec.experts.count, spec.experts.chosen)


def pacing_of(
    config: EngineConfig, spec: ModelSpec, kv: KVSizes, weights_bytes: int, graph_rows: Sequence[int]
) -> Pacing | None:
    """Return what is known before anything is measured; None without an ITL target or chunks by time.

    Args:
        config: resolved.
        graph_rows: numbers of rows of steps that replay a graph.
    """
    scheduler = config.scheduler
    limits = scheduler.limits()
    if not limits.itl_target and limits.dynamic_chunking != CHUNKS_BY_TIME:
        return None
    assert scheduler.depth is not None and scheduler.lookahead is not None, f"not resolved: {scheduler}"
    device_type = torch.device(config.model.device).type
    prior = prior_of(spec, kv, weights_bytes, device_type)
    return Pacing(prior, max(graph_rows, default=0), scheduler.depth - scheduler.lookahead)


class KeptCosts(NamedTuple):
    """A file, and what it holds."""

    path: Path
    key: Key
    """Key of this engine."""
    learnt: LearntPacing | None
    """What the file holds for this key; None: nothing."""


class CostKeeper:
    """A trace sink in front of another one that writes what a pacer has learnt to a file, from time to time."""

    def __init__(self, inner: TraceSink, pacer: Pacer, costs: KeptCosts, clock: Clock) -> None:
        self._inner = inner
        self._pacer = pacer
        self._path = costs.path
        self._key = costs.key
        self._clock = clock
        self._saved_at = clock.now()
        self._can_write = True

    @property
    def latest(self) -> StepRecord | None:
        return self._inner.latest

    def ended(self, plan: BatchPlan, result: BatchResult | None, times: StepTimes) -> None:
        if times.ended_at - self._saved_at >= SAVE_SECONDS:
            self._saved_at = times.ended_at
            self.save()
        self._inner.ended(plan, result, times)

    def close(self) -> None:
        self.save(LAST_SECONDS)
        self._inner.close()

    def save(self, patience: float = 0.0) -> None:
        """Write what was learnt, unless another engine is writing for so long. If it cannot be written, that is logged
        once, and serving continues."""
        try:
            write_entry(self._path, LearntEntry(self._key, self._pacer.learnt()), patience)
            self._can_write = True
        except (OSError, ConfigError) as error:
            if self._can_write:
                why = error.strerror if isinstance(error, OSError) else error
                LOGGER.warning("--cost-model %s cannot be written: %s", self._path, why)
            self._can_write = False


def kept_costs(
    config: EngineConfig, device: torch.device, graph_rows: Sequence[int], *, follows: bool
) -> KeptCosts | None:
    """Return what the file of a resolved config holds for it; None if no file is named.

    Args:
        graph_rows: numbers of rows of steps that replay a graph.
        follows: the engine replaces another one: a file that is no cost model is not used, nor written.

    Raises:
        ConfigError: as `read_costs`, or the target is below what a decode takes.
    """
    if config.trace.cost_model is None:
        return None
    path, key = Path(config.trace.cost_model), Key.of(config, device)
    try:
        found = read_costs(path)
    except ConfigError as error:
        if not follows:
            raise
        LOGGER.warning("%s; this engine learns anew", error)
        found = CostFile()
    learnt = next((entry.learnt for entry in found.entries if entry.key == key), None)
    others = tuple(entry for entry in found.entries if entry.key != key)
    if learnt is not None and not follows:
        _check_target(config, learnt, Regime.GRAPH if graph_rows else Regime.DECODE)
    elif learnt is None and others:
        shown = "; ".join(", ".join(map(str, entry.key)) for entry in others)
        LOGGER.warning(
            "--cost-model %s has costs of %s; this is %s, learnt anew", path, shown, ", ".join(map(str, key))
        )
    return KeptCosts(path, key, learnt)


def _check_target(config: EngineConfig, learnt: LearntPacing, regime: Regime) -> None:
    """
    Args:
        regime: of a step that decodes one request.

    Raises:
        ConfigError: such a step takes longer than the target.
    """
    target = config.scheduler.limits().itl_target
    alone = StepCost(learnt=learnt.costs).fitted(regime, StepLoad(1, 1, 1))
    if regime in learnt.costs.regimes and alone > target > 0:
        raise ConfigError(
            f"--itl-target {config.scheduler.itl_target} is below the {alone / 1000:.1f} ms of a step that decodes one"
            f" request, by --cost-model {config.trace.cost_model}; a target must be above that"
        )


def profiled(setup: SchedulerSetup, runner: Runner, clock: Clock, longest: int) -> Pacing:
    """Return what is known of the machine after some steps that compute prompts, and nothing else, were timed.

    The times are part of what the engine's scheduler is built from, so a recorded run plans the same when it is
    replayed. Later requests overwrite the slots and pages that were used.

    Args:
        setup: of the engine's scheduler, whose chunks are by time.
        runner: with nothing in flight.
        longest: most tokens of a request.
    """
    limits = replace(setup.limits, pipeline_stages=1, max_queued_requests=0, max_queued_tokens=0)
    scheduler = replace(
        setup, limits=limits, prefix_caching=False, tiers=replace(setup.tiers, host_pages=0, disk_pages=0), offload=None
    ).build()
    scheduler.state.step = FIRST_STEP
    size = limits.chunked_prefill_size
    longest = min(longest, setup.num_pages * setup.page_size) - 1
    lengths = [size, size // 2, CHUNKS * size]
    for number, length in enumerate(lengths):
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        scheduler.add(Submit(number, (0,) * max(1, min(length, longest)), sampling))
        while (plan := scheduler.schedule()) is not None:
            began = clock.now()
            result = runner.launch(plan).wait()
            micros = round((clock.now() - began) * 1e6)
            scheduler.commit(plan, result, micros if number else 0)  # the first one warms up
    assert scheduler.state.sizer is not None, f"chunks are not by time: {limits}"
    return replace(setup.pacing or Pacing(), learnt=LearntPacing(scheduler.state.sizer.learnt(), 0, 0))
