"""What a pacer knows of a machine before its first step, and the file that keeps what it learns."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from sluice.assembly.cost_check import check_learnt
from sluice.assembly.offloading import ATTENTION_COST
from sluice.config import ConfigError, EngineConfig
from sluice.device.machine import processor_name, usable_cores
from sluice.engine.clock import Clock
from sluice.engine.trace import StepRecord, StepTimes, TraceSink
from sluice.footprint import KVSizes
from sluice.models.spec import ModelSpec
from sluice.scheduler.cost import CostPrior, Load, StepCost
from sluice.scheduler.pacer import LearntPace, Pacer, Pacing
from sluice.types import BatchPlan, BatchResult, Regime

LOGGER = logging.getLogger("sluice.engine")
FORMAT = 1
SAVE_SECONDS = 10.0


class Rates(NamedTuple):
    """What a usual machine does in a microsecond. Only the proportions matter, and they are soon replaced."""

    flops: float
    read_bytes: float
    """From the device's memory."""
    load_bytes: float
    """From host memory or a disk."""
    step: float
    """Microseconds of a step that computes nothing."""


RATES: Mapping[str, Rates] = {"cpu": Rates(3e5, 2e4, 2e3, 1000.0), "cuda": Rates(2e8, 2e6, 2.5e4, 3000.0)}


def prior_of(spec: ModelSpec, kv: KVSizes, weights_bytes: int, device_type: str) -> CostPrior:
    """Return the costs of a model's steps on a usual machine of a type."""
    rates = RATES[device_type]
    token = 2 * weights_bytes / spec.dtype.itemsize / rates.flops
    pair_flops = 4 * spec.num_layers * spec.num_heads * spec.head_dim * ATTENTION_COST[device_type]
    return CostPrior(
        step=rates.step + weights_bytes / rates.read_bytes,
        token=token,
        row=token / 4,
        key=kv.layer_token_bytes * spec.num_layers / rates.read_bytes,
        pair=pair_flops / rates.flops,
        byte=1 / rates.load_bytes,
    )


def pacing_of(
    config: EngineConfig, spec: ModelSpec, kv: KVSizes, weights_bytes: int, graph_rows: Sequence[int]
) -> Pacing | None:
    """Return what is known before anything is measured; None without an ITL target.

    Args:
        config: resolved.
        graph_rows: numbers of rows of steps that replay a graph.
    """
    scheduler = config.scheduler
    if not scheduler.limits().itl_target:
        return None
    assert scheduler.depth is not None and scheduler.lookahead is not None, f"not resolved: {scheduler}"
    device_type = torch.device(config.model.device).type
    prior = prior_of(spec, kv, weights_bytes, device_type)
    return Pacing(prior, max(graph_rows, default=0), scheduler.depth - scheduler.lookahead)


class Key(NamedTuple):
    """What costs are learnt for."""

    machine: str
    model: str
    dtype: str
    threads: int | None
    kernels: str

    @classmethod
    def of(cls, config: EngineConfig, device: torch.device) -> Key:
        """Return the key of a resolved config."""
        model = config.model
        if device.type == "cuda":
            machine = torch.cuda.get_device_name(device)
        else:
            machine = f"{processor_name()}, {usable_cores()} cores"
        kernels = f"{model.cpu_kernels}, {model.attention_backend}, {model.kv_cache_dtype}"
        return cls(f"{platform.machine()}: {machine}", model.model, model.dtype, model.threads, kernels)


class Entry(NamedTuple):
    """What was learnt for one key."""

    key: Key
    learnt: LearntPace


class KeptCosts(NamedTuple):
    """A file, and what it holds."""

    path: Path
    key: Key
    """Of this engine."""
    learnt: LearntPace | None
    """For this key."""
    others: tuple[Entry, ...]


class CostFile(msgspec.Struct, frozen=True):
    """The content of a cost model's file."""

    format: int
    entries: tuple[Entry, ...] = ()


def read_costs(path: Path) -> CostFile:
    """Return what a file holds; nothing if there is none.

    Raises:
        ConfigError: it cannot be read or written, or is no cost model.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(0, "it cannot be written")
    except OSError as error:
        raise ConfigError(f"--cost-model {path}: {error.strerror}") from error
    if not content:
        return CostFile(FORMAT)
    try:
        found = msgspec.json.decode(content, type=CostFile)
        for entry in found.entries:
            check_learnt(entry.learnt)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--cost-model {path} is no cost model: {error}; name another file, or remove it to begin anew"
        ) from error
    if found.format != FORMAT:
        raise ConfigError(f"--cost-model {path} has format {found.format}, {FORMAT} is accepted; name another file")
    return found


class CostKeeper:
    """A trace sink in front of another one that writes what a pacer has learnt to a file, from time to time."""

    def __init__(self, inner: TraceSink, pacer: Pacer, costs: KeptCosts, clock: Clock) -> None:
        self._inner = inner
        self._pacer = pacer
        self._path = costs.path
        self._key = costs.key
        self._others = costs.others
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
        self.save()
        self._inner.close()

    def save(self) -> None:
        """Write the file anew. If that fails, it is logged once, and serving goes on."""
        content = CostFile(FORMAT, (*self._others, Entry(self._key, self._pacer.learnt())))
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.encode(content))
            temporary.replace(self._path)
            self._can_write = True
        except OSError as error:
            if self._can_write:
                LOGGER.warning("--cost-model %s cannot be written: %s", self._path, error.strerror)
            self._can_write = False
            with suppress(OSError):
                temporary.unlink()


def kept_costs(config: EngineConfig, device: torch.device, *, follows: bool) -> KeptCosts | None:
    """Return what the file of a resolved config holds for it; None if no file is named.

    Args:
        follows: the engine replaces another one: a file that is no cost model is set aside.

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
        found = CostFile(FORMAT)
    learnt = next((entry.learnt for entry in found.entries if entry.key == key), None)
    others = tuple(entry for entry in found.entries if entry.key != key)
    if learnt is not None and not follows:
        _check_target(config, learnt)
    elif learnt is None and others:
        shown = "; ".join(", ".join(map(str, entry.key)) for entry in others)
        LOGGER.warning(
            "--cost-model %s has costs of %s; this is %s, learnt anew", path, shown, ", ".join(map(str, key))
        )
    return KeptCosts(path, key, learnt, others)


def _check_target(config: EngineConfig, learnt: LearntPace) -> None:
    """
    Raises:
        ConfigError: one decode alone takes longer than the target.
    """
    target, decode = config.scheduler.limits().itl_target, StepCost(learnt=learnt.costs)
    alone = decode.fitted(Regime.DECODE, Load(1, 1, 1))
    if learnt.costs.regimes.get(Regime.DECODE) and alone > target:
        raise ConfigError(
            f"--itl-target {config.scheduler.itl_target} is below the {alone / 1000:.1f} ms of a step that decodes one"
            f" request, by --cost-model {config.trace.cost_model}; a target must be above that"
        )
