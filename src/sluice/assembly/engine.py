"""From options to a running engine."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from sluice.assembly.adapter_loader import AdapterLoader
from sluice.assembly.cost_file import read_costs
from sluice.assembly.first_step import check_first_step
from sluice.assembly.info import EngineInfo
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.assembly.pacing import kept_costs, profiled
from sluice.assembly.peers import NO_PEERS, Peers
from sluice.assembly.rank_runners import NO_OTHERS, LedRanks, NoOthers, OtherRanks
from sluice.assembly.ranks import layout_of, shown_sizes
from sluice.assembly.tiers import (
    LOAD_BACK_PAGES,
    DiskUnusable,
    TierSetup,
    check_disk,
    copy_limits,
    page_geometry,
    without_disk,
)
from sluice.config import ConfigError, EngineConfig, MemoryShortage, TraceConfig
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Heartbeat
from sluice.engine.messages import BlocksLoaded, Copied
from sluice.engine.meter import RingTotals
from sluice.engine.protocols import Link
from sluice.models.weights import fingerprint
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.parallel.tokens import exchange_last_tokens
from sluice.tracing.file import create
from sluice.types import CHUNKS_BY_TIME, AdapterInfo, Tier, TierLimits
from sluice.types.faults import Fault

LOGGER = logging.getLogger("sluice.engine")
FULL_DISK = {errno.ENOSPC, errno.EDQUOT}

TIMES_THE_POOL = 4
"""Pages of others that an engine knows of at once, for each page of its device. They cost it some bytes each."""

MESSAGES = ("can't allocate memory", "cannot allocate memory", "out of memory")
"""Texts in plain RuntimeErrors that report a lack of memory: from torch's allocator on CPU, from a mapped file, and
from CUDA outside torch's allocator."""


@contextmanager
def memory_shortage() -> Iterator[None]:
    """Raise MemoryShortage in place of an error of torch that says that memory is lacking."""
    try:
        yield
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        raise MemoryShortage(f"not enough free memory to build the engine: {str(error).strip()}") from error


def lacks_memory(error: RuntimeError) -> bool:
    """Return whether an error of torch says that memory is lacking, on the device or the host."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(message in text for message in MESSAGES)


def build_engine(
    config: EngineConfig,
    link: Link,
    *,
    progress: bool,
    heartbeat: Heartbeat | None = None,
    faults: Sequence[Fault] = (),
    follows: bool = False,
    ranks: OtherRanks | None = None,
    peers: Peers = NO_PEERS,
    adapters: Sequence[AdapterInfo] | None = None,
) -> tuple[Engine, EngineInfo]:
    """Load a model and build an engine over it.

    Args:
        config: as the user gave it; open options are resolved here.
        link: where messages come from and outputs go.
        progress: show a progress bar on stderr while weights load.
        heartbeat: receives how far the model is loaded, and then the signs of life of the engine's steps.
        faults: to inject.
        follows: whether it takes over the requests of another engine. Then the file of its disk tier must be as that
            engine left it, and with any other file it serves without the tier. A trace that it cannot write is left
            out.
        ranks: the other ranks, if the options ask for several, of which this process is the first.
        peers: what it tells others of its pages, and takes from them.
        adapters: that an engine before had read; None: those of the options.

    Raises:
        ConfigError: an option that cannot be honoured.
        MemoryShortage: the memory that is free at the moment is too small.
        CheckpointError: a model that cannot be found or loaded.
    """
    build = partial(
        _build,
        link=link,
        progress=progress,
        heartbeat=heartbeat,
        faults=faults,
        follows=follows,
        ranks=ranks,
        peers=peers,
        adapters=adapters,
    )
    _refuse_without_server(config, ranks, peers)
    # First, since a path that cannot be used or written should be reported before minutes of loading.
    config, disabled = _usable_disk(config, follows=follows)
    if config.trace.cost_model is not None and not follows:
        read_costs(Path(config.trace.cost_model))
    config, trace = _new_trace(config, must_have=not follows)
    try:
        return build(config, trace=trace, disabled=disabled, must_exist=follows)
    except DiskUnusable as error:  # it has changed since, or is of another layout
        if not follows:
            raise
        config, disabled = _without_disk(config, error)
    return build(config, trace=trace, disabled=disabled)  # here, as `error` would keep the first model in memory


def _refuse_without_server(config: EngineConfig, ranks: OtherRanks | None, peers: Peers) -> None:
    """Refuse what needs an engine in a process of its own."""
    needed = "needs `sluice serve` or AsyncLLM: here the engine is this process"
    if layout_of(config.parallel).size > 1 and ranks is None:
        raise ConfigError(f"{shown_sizes(config.parallel)} {needed}")
    if config.kv_events.kv_events and peers.events is None:
        raise ConfigError(f"--kv-events {needed}")


@memory_shortage()
def _build(
    config: EngineConfig,
    *,
    link: Link,
    progress: bool,
    heartbeat: Heartbeat | None,
    faults: Sequence[Fault],
    trace: Path | None,
    disabled: Mapping[Tier, str],
    follows: bool = False,
    must_exist: bool = False,
    ranks: OtherRanks | None = None,
    peers: Peers = NO_PEERS,
    adapters: Sequence[AdapterInfo] | None = None,
) -> tuple[Engine, EngineInfo]:
    """Load a model and build an engine over it, with exactly the tiers of the config.

    Raises:
        DiskUnusable: the file of the disk tier cannot be used.
        ConfigError, MemoryShortage, CheckpointError: as `build_engine`.
    """
    led = NO_OTHERS if ranks is None else LedRanks(ranks)
    loaded = _loaded(config, led, peers, progress=progress, disabled=disabled, heartbeat=heartbeat)
    costs = kept_costs(loaded.info.config, loaded.info.device, loaded.graph_rows, follows=follows)
    if costs is not None and loaded.pacing is not None:
        loaded = replace(loaded, pacing=replace(loaded.pacing, learnt=costs.learnt))
    grammars = loaded.grammars(link.post)
    state = loaded.state(grammars, led.publish)
    if loaded.info.config.scheduler.lookahead:
        exchange_last_tokens(state, led.member)
    tiers = loaded.tiers.open(state, lambda done: link.post(Copied(done)), must_exist=must_exist)
    with ExitStack() as undo:
        undo.callback(tiers.copies.close)
        runner = loaded.runner(
            heartbeat,
            faults,
            state,
            tiers,
            lambda *blocks: link.post(BlocksLoaded(*blocks)),
            led.elsewhere,
        )
        leader = led.over(runner)
        undo.callback(leader.close)
        info = loaded.built(runner)
        setup = loaded.setup()
        if not follows and not faults and loaded.spec.diffusion is None:
            check_first_step(setup, leader, info.folder, embeds=not loaded.model.has_head)
        if setup.limits.dynamic_chunking == CHUNKS_BY_TIME and not follows:
            loaded = replace(loaded, pacing=profiled(setup, leader, WallClock(), loaded.spec.max_model_len))
        engine = loaded.engine(link, leader, tiers, trace=trace, costs=costs, grammars=grammars, peers=peers)
        info = _with_adapters(info, engine, adapters)
        engine.ring = lambda: ring_totals(runner.loads, runner.footprint().bounds_bytes)
        undo.pop_all()
    return engine, info


def _loaded(
    config: EngineConfig,
    led: NoOthers | LedRanks,
    peers: Peers,
    *,
    progress: bool,
    disabled: Mapping[Tier, str],
    heartbeat: Heartbeat | None,
) -> LoadedModel:
    """Load a model, or this rank's part of it, for an engine that may take pages of others."""
    loaded = load(
        config,
        progress=progress,
        disabled=disabled,
        heartbeat=heartbeat,
        member=led.member,
        agree=led.agree,
        shares_pages=peers.remote is not None,
    )
    return loaded if peers.remote is None else with_remote_pages(loaded, peers.remote)


def _with_adapters(info: EngineInfo, engine: Engine, adapters: Sequence[AdapterInfo] | None) -> EngineInfo:
    """Let an engine read its adapters, and return `info` with them.

    Args:
        adapters: that an engine before had read; None: those of the options.

    Raises:
        ConfigError: one of those of the options cannot be used.
    """
    loader = engine.adapters
    if not isinstance(loader, AdapterLoader):
        return info
    if adapters is not None:
        return replace(info, adapters=loader.restore(adapters), lost_adapters=loader.lost)
    found = []
    for module in info.config.lora.modules():
        try:
            found.append(loader.read_now(module.name, module.path))
        except (ValueError, OSError) as error:
            raise ConfigError(f"--lora-modules {module.name}={module.path}: {error}") from error
    return replace(info, adapters=tuple(found))


def ring_totals(loads: LoadTotals, bounds_bytes: int) -> RingTotals:
    """Return what a runner has loaded and what its sparse policy keeps, as the engine reports it."""
    return RingTotals(loads.bytes, loads.seconds, loads.waited, bounds_bytes)


def _usable_disk(config: EngineConfig, *, follows: bool) -> tuple[EngineConfig, Mapping[Tier, str]]:
    """Return a config whose disk can be used, and why a tier is left out, if one is.

    Raises:
        DiskUnusable: the file of the disk tier cannot be used, by an engine that follows no other.
    """
    try:
        check_disk(config.cache, must_exist=follows)
    except DiskUnusable as error:
        if not follows:
            raise
        return _without_disk(config, error)
    return config, {}


def _without_disk(config: EngineConfig, error: DiskUnusable) -> tuple[EngineConfig, Mapping[Tier, str]]:
    """Return a config without the disk tier, and why it lacks the tier. Logs that as well."""
    LOGGER.warning("%s; this engine serves without the disk tier", error)
    return without_disk(config), {Tier.DISK: str(error)}


def _new_trace(config: EngineConfig, *, must_have: bool) -> tuple[EngineConfig, Path | None]:
    """Create the empty file of the trace, if there is to be one.

    Args:
        must_have: whether a trace that cannot be written is an error, but for a full disk, which may have room again
            later. If it is none, it is logged.

    Returns:
        The config, without a trace if none is written, and the file.

    Raises:
        ConfigError: the trace cannot be written.
    """
    if config.trace.trace is None:
        return config, None
    path = Path(config.trace.trace)
    try:
        create(path)
    except OSError as error:
        problem = f"--trace {path} cannot be written: {error.strerror}"
        if must_have and error.errno not in FULL_DISK:
            raise ConfigError(problem) from error
        LOGGER.warning("%s; this engine writes no trace", problem)
        return replace(config, trace=TraceConfig()), None
    return config, path


def with_remote_pages(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """Return a model whose engines take pages from the page files in a folder.

    Raises:
        ConfigError: it has tiers of its own, or the folder cannot be used.
    """
    config, shape = loaded.info.config, loaded.shape
    _refuse(config, folder)
    if shape.state is not None:
        raise ConfigError(
            f"taking pages from {folder} is not supported for {loaded.spec.architecture}, whose layers have recurrent"
            " states"
        )
    geometry = page_geometry(loaded.spec, shape, fingerprint(loaded.info.folder), layout=loaded.backend.layout)
    per_step, in_flight = copy_limits(config, shape, geometry.page_bytes)
    limits = TierLimits(
        disk_pages=TIMES_THE_POOL * shape.num_pages,
        write_policy="never",
        copies_per_step=per_step,
        copies_in_flight=in_flight,
        load_back_pages=LOAD_BACK_PAGES,
    )
    return replace(loaded, tiers=TierSetup(limits, geometry, remote=folder.absolute()))


def _refuse(config: EngineConfig, folder: Path) -> None:
    shown = f"taking pages from {folder}"
    given = {
        "--kv-disk": config.cache.kv_disk,
        "--kv-host-bytes": config.cache.kv_host_bytes,
        "--trace": config.trace.trace,
    }
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} {value} is not supported beside {shown}")
    if layout_of(config.parallel).size > 1:
        raise ConfigError(f"several ranks are not supported beside {shown}")
    if not config.cache.enable_prefix_caching:
        raise ConfigError(f"{shown} needs the prefix cache, but it is off (--no-enable-prefix-caching)")
    if not folder.is_dir():
        raise ConfigError(f"{shown}: there is no such folder")
