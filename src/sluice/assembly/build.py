"""From options to a running engine: the one place where the runner meets the scheduler."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from sluice.assembly.cpu_kernels import TORCH
from sluice.assembly.cuda_graphs import captured_graphs, graph_rows
from sluice.assembly.cuda_kernels import CudaDevice, why_no_triton
from sluice.assembly.devices import resolve_here
from sluice.assembly.offloading import (
    OffloadSetup,
    Sizes,
    check_effect,
    costs_of,
    offload_limits,
    ring_bytes,
    room_beside_ring,
)
from sluice.assembly.resolve import offload_tier
from sluice.assembly.step_memory import StepTrial, cuda_memory
from sluice.assembly.tiers import NO_TIERS, OpenTiers, TierSetup, check_disk, tier_setup, without_disk_away
from sluice.attention.backend import AttentionBackend
from sluice.attention.packed import STEPS
from sluice.attention.select import REFERENCE, backend_named, kv_dtype
from sluice.attention.ticking import TickingAttention
from sluice.config import ConfigError, EngineConfig, TraceConfig
from sluice.device.machine import free_memory, keep_freed_memory
from sluice.device.memory import PoolRequest, Room, cpu_room, cuda_room, module_bytes, pool_pages
from sluice.device.transport import transport_for
from sluice.engine.chunk_log import ChunkLog
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Heartbeat, NoHeartbeat, Phase
from sluice.engine.messages import BlocksLoaded, Copied
from sluice.engine.protocols import Link, Runner
from sluice.engine.recorder import Recorder
from sluice.engine.trace import RecentSteps
from sluice.faults import Fault, FaultKind
from sluice.footprint import Footprint, KVSizes, OffloadSizes, device_footprint, stored_bytes
from sluice.limits import Limits
from sluice.models.base import CausalLM, PagedLM
from sluice.models.hub import BUNDLED, resolve_checkpoint
from sluice.models.loader import load_model
from sluice.models.native_ops import NativeOps
from sluice.models.packers import packer_for
from sluice.models.spec import ModelSpec
from sluice.native.library import NAMES, Kernels, Library
from sluice.runner.device_state import DeviceShape, DeviceState, KVMaker
from sluice.runner.forwards import EagerForwards, Forwards
from sluice.runner.kernel_capture import cpu_graphs
from sluice.runner.largest_step import StepLimits
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.runner.nan_fault import NanFaultModel
from sluice.runner.offload.loaders import Report
from sluice.runner.runner import Model, TorchRunner
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.setup import SchedulerSetup
from sluice.tracing.format import VERSION, Header
from sluice.tracing.writer import TraceFile, create
from sluice.types import Tier

LOGGER = logging.getLogger("sluice.engine")


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine turned out to be, for whoever faces the user."""

    model: str
    """Name: the hub id, or the folder's own name."""
    folder: Path
    """Where the checkpoint is, its tokenizer included."""
    is_bundled: bool
    """The model that comes with Sluice: nobody named one."""
    architecture: str
    eos_token_ids: frozenset[int]
    """Of the model; the tokenizer may know more."""
    dtype: torch.dtype
    device: torch.device
    limits: Limits
    config: EngineConfig
    """Resolved, with the model's name, its type, its device and the size of the pool."""
    reasons: Mapping[str, str]
    """Option -> why it has its value, for those that were derived."""
    kv_sizes: KVSizes
    pool_tokens: int
    """That the pool's pages hold, among them one that belongs to nobody where steps are padded."""
    memory: Footprint
    """What the weights take, and, of a built engine, all the rest that was allocated."""
    offload_sizes: OffloadSizes | None = None
    """What contexts longer than the device pass through."""
    offload_tier: Tier | None = None
    """Where they lie."""

    def predicted_memory(self, length: int) -> Footprint:
        """What a request of so many tokens takes, prompt and output together, in bytes by part.

        Raises:
            LimitError: there can be no such request.
        """
        self.limits.check_length(length)
        sizes = self.offload_sizes
        predicted = device_footprint(self.kv_sizes, self.pool_tokens, sizes, weights_bytes=self.memory.weights_bytes)
        above = self.config.offload.offload_above
        if sizes is None or above is None or length <= above:
            return predicted
        stored = stored_bytes(self.kv_sizes, length, sizes.page_tokens)
        on_host = self.offload_tier is Tier.HOST
        return replace(predicted, host_bytes=stored * on_host, disk_bytes=stored * (not on_host))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and the sizes and limits that follow from it and the options."""

    model: Model
    spec: ModelSpec
    shape: DeviceShape
    info: EngineInfo
    kernels: Kernels | None
    """The compiled ones, on a CPU that has them."""
    backend: AttentionBackend
    """What attends."""
    graph_rows: tuple[int, ...]
    """Numbers of rows of steps that are replayed as CUDA graphs; none: no step is."""
    tiers: TierSetup
    """Behind the device."""
    offload: OffloadSetup | None
    """None: contexts longer than the device are refused."""
    logit_ops: LogitOps = TORCH_LOGIT_OPS

    @property
    def new_kv(self) -> KVMaker:
        """Makes pages as the backend reads them."""
        return partial(self.backend.new_kv, kernels=self.kernels)

    def state(self) -> DeviceState:
        """An empty device."""
        return DeviceState(self.shape, self.new_kv, watched=self.info.config.model.debug_uninitialized_reads)

    def runner(
        self,
        heartbeat: Heartbeat | None = None,
        faults: Sequence[Fault] = (),
        state: DeviceState | None = None,
        tiers: OpenTiers = NO_TIERS,
        report: Report | None = None,
    ) -> TorchRunner:
        """A runner.

        Args:
            heartbeat: where every layer, and every second of waiting, gives a sign of life.
            faults: of which those with NaN logits are put in.
            state: empty, and nobody else's; None: a new one.
            tiers: behind this state.
            report: called with blocks of offloaded chunks that were read ahead from a disk.
        """
        state = state or self.state()
        heartbeat = heartbeat or NoHeartbeat()
        busy, waiting = partial(heartbeat.tick, Phase.BUSY), partial(heartbeat.tick, Phase.DEVICE)
        spoiling = [fault for fault in faults if fault.kind is FaultKind.NAN]
        model = NanFaultModel(self.model, spoiling) if spoiling else self.model
        device, poison = self.shape.device, self.info.config.model.debug_uninitialized_reads
        attention = TickingAttention(self.backend.make(device, self.kernels, busy), busy)
        transport = transport_for(device, self.depth, poison=poison, tick=waiting)
        forwards: Forwards = EagerForwards(model, state, attention)
        if self.graph_rows and not spoiling:
            forwards = captured_graphs(forwards, model, state, attention, transport, self.graph_rows, busy)
        elif _kernels_compute(self.backend, self.spec) and not spoiling:  # elsewhere Python's share is small
            assert self.kernels is not None, "only the kernels' calls are captured"
            forwards = cpu_graphs(forwards, model, state, attention, self.kernels, busy)
        offload = None
        if self.offload is not None and tiers is not NO_TIERS:
            unplanned = TickingAttention(self.backend.make_unplanned(device, self.kernels, busy), busy)
            offload = self.offload.open(model, state, unplanned, self.new_kv, tiers, transport, report)
        return TorchRunner(
            model,
            state,
            attention,
            transport=transport,
            forwards=forwards,
            logit_ops=self.logit_ops,
            tick=waiting,
            copies=tiers.copies,
            offload=offload,
        )

    def built(self, runner: TorchRunner) -> EngineInfo:
        """`info`, with what the runner allocated. Buffers are parts of the pool and of the ring."""
        info = self.info
        planned = device_footprint(info.kv_sizes, info.pool_tokens, info.offload_sizes)
        allocated = replace(
            runner.footprint(),
            weights_bytes=info.memory.weights_bytes,
            prefill_buffer_bytes=planned.prefill_buffer_bytes,
            pipeline_buffer_bytes=planned.pipeline_buffer_bytes,
            decode_buffer_bytes=planned.decode_buffer_bytes,
        )
        return replace(info, memory=allocated)

    def scheduler(self) -> Scheduler:
        return self.setup().build()

    def setup(self) -> SchedulerSetup:
        """What `scheduler` builds from."""
        config = self.info.config
        return SchedulerSetup(
            limits=config.scheduler.limits(),
            num_pages=self.shape.num_pages,
            page_size=self.shape.page_size,
            prefix_caching=config.cache.enable_prefix_caching,
            tiers=self.tiers.limits,
            offload=None if self.offload is None else self.offload.limits,
        )

    @property
    def depth(self) -> int:
        """Steps in flight at once."""
        depth = self.info.config.scheduler.depth
        assert depth is not None, f"not resolved: {self.info.config}"
        return depth

    def engine(
        self,
        link: Link,
        runner: Runner | None = None,
        tiers: OpenTiers = NO_TIERS,
    ) -> Engine:
        """An engine over a new scheduler, which writes no trace.

        Args:
            runner: if not one of our own; it must be as empty as the scheduler.
            tiers: that the runner copies to.
        """
        scheduler = self.scheduler()
        if tiers.stored:
            scheduler.restore(tiers.stored)
        return Engine(
            scheduler,
            runner or self.runner(),
            link,
            depth=self.depth,
            trace=ChunkLog(RecentSteps()),
        )

    def traced_engine(
        self,
        link: Link,
        path: Path,
        runner: Runner | None = None,
        tiers: OpenTiers = NO_TIERS,
    ) -> Engine:
        """The same, writing a trace.

        Args:
            path: made by `tracing.writer.create`.
            runner: if not one of our own.
            tiers: that the runner copies to.

        Raises:
            OSError: it cannot be written.
        """
        clock = WallClock()
        header = Header(
            version=VERSION,
            sluice=version("sluice"),
            model=self.info.model.encode(errors="replace").decode(),
            token_ids=self.info.config.trace.trace_token_ids,
            setup=self.setup(),
            depth=self.depth,
            unix_time=time.time(),
        )
        journal = TraceFile(path, header, start=clock.now(), key=secrets.token_bytes(16))
        recorder = Recorder(self.scheduler(), ChunkLog(RecentSteps()), journal, clock)
        if tiers.stored:
            recorder.restore(tiers.stored)
        return Engine(
            recorder,
            runner or self.runner(),
            link,
            depth=self.depth,
            clock=clock,
            trace=recorder,
        )


def build_engine(
    config: EngineConfig,
    link: Link,
    *,
    progress: bool,
    heartbeat: Heartbeat | None = None,
    faults: Sequence[Fault] = (),
    follows: bool = False,
) -> tuple[Engine, EngineInfo]:
    """Load a model and join it with a scheduler.

    Args:
        config: as the user gave it; open options are filled here.
        link: where messages come from and outputs go.
        progress: show a progress bar on stderr while weights load.
        heartbeat: where the engine's steps give signs of life.
        faults: that are to go wrong inside the model.
        follows: another engine, whose requests it takes over: it goes on without a disk tier that cannot be had now.

    Raises:
        ConfigError: an option that cannot be honoured.
        CheckpointError: a model that cannot be found or loaded.
    """
    # First: a path that cannot be written is told before minutes of loading.
    if follows:
        config = without_disk_away(config)
    else:
        check_disk(config.cache)
    path = _new_trace(config.trace)
    loaded = load(config, progress=progress)
    state = loaded.state()
    tiers = loaded.tiers.open(state, lambda done: link.post(Copied(done)))
    with ExitStack() as undo:
        undo.callback(tiers.copies.close)
        runner = loaded.runner(heartbeat, faults, state, tiers, lambda *loaded: link.post(BlocksLoaded(*loaded)))
        undo.callback(runner.close)
        info = loaded.built(runner)
        engine = loaded.engine(link, runner, tiers) if path is None else loaded.traced_engine(link, path, runner, tiers)
        undo.pop_all()
    return engine, info


def _new_trace(config: TraceConfig) -> Path | None:
    """The file of the trace, empty."""
    if config.trace is None:
        return None
    path = Path(config.trace)
    try:
        create(path)
    except OSError as error:
        raise ConfigError(f"--trace {path} cannot be written: {error.strerror}") from error
    return path


def load(config: EngineConfig, *, progress: bool) -> LoadedModel:
    """The part of `build_engine` that takes long; several engines may share what it returns."""
    given = config.offload
    resolution, device = resolve_here(config)
    config, reasons = resolution.config, dict(resolution.reasons)
    is_bundled = not config.model.model
    folder = BUNDLED if is_bundled else resolve_checkpoint(config.model.model)
    asked = config.model
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    kernels = _load_kernels(config, device, reasons)
    try:
        model, spec = load_model(
            folder,
            dtype=asked.dtype,
            device=device,
            progress=progress,
            implementation=asked.model_impl,
            packer=packer_for(device, kernels),
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{config.model.model or folder.name} does not fit into the memory of {device}: serve a smaller one, in"
            f" --dtype bfloat16 if it is wider, or compute on the processor with --device cpu"
        ) from error
    if device.type == "cpu":
        keep_freed_memory()
    if kernels is not None and isinstance(model, CausalLM):
        model.use(NativeOps(kernels))
    if config.scheduler.dynamic_chunking == 0:
        doubles_at = spec.dynamic_chunking_position(_layer_weights(model, spec))
        reasons["dynamic_chunking"] = "there attention takes as much as the weights of this model"
        config = replace(config, scheduler=replace(config.scheduler, dynamic_chunking=doubles_at))
    logit_ops: LogitOps = TORCH_LOGIT_OPS
    if device.type == "cuda" and has_triton(device):
        logit_ops = use_triton(model)
    backend = _attention(config, spec, reasons)
    if _kernels_compute(backend, spec):
        # What is left to torch is small, and its waiting threads would take the kernels' cores.
        torch.set_num_threads(1)
    rows, reasons["cuda_graph_max_bs"] = graph_rows(config, spec, device, backend)
    pages_of = kv_dtype(asked.kv_cache_dtype, backend) or spec.dtype
    kv_sizes = KVSizes(spec.num_layers, spec.num_kv_heads, spec.head_dim, pages_of.itemsize)
    shape = _device_shape(config, spec, device, scratch_pages=1 if rows or _kernels_compute(backend, spec) else 0)
    shape = replace(shape, kv_dtype=pages_of)
    if device.type == "cuda":
        room = _cuda_room(
            config,
            spec,
            device,
            StepTrial(model, shape, backend, logit_ops),
            rows,
            ring_bytes(config.offload, kv_sizes),
        )
    else:
        room = cpu_room(room_beside_ring(config.offload, kv_sizes, free_memory(device)))
    wanted = _pool_request(shape, config, spec, kv_sizes)
    num_pages = pool_pages(wanted, room)
    shape = replace(shape, num_pages=num_pages, row_pages=min(num_pages, shape.row_pages))
    if wanted.max_total_tokens is None:
        is_enough = num_pages == wanted.useful_pages
        reasons["max_total_tokens"] = "all that --max-running-requests can use" if is_enough else room.reason
    total = shape.num_pages * shape.page_size
    name = folder.resolve().name if is_bundled or Path(config.model.model).is_dir() else config.model.model
    if config.cache.max_total_tokens not in (None, total):
        reasons["max_total_tokens"] = f"{config.cache.max_total_tokens} in whole pages"
    tiers = tier_setup(config, spec, shape, folder, layout=backend.layout)
    weights_bytes = module_bytes(model)
    offload = _offload(config, spec, shape, kv_sizes, weights_bytes)
    check_effect(given, None if offload is None else offload.limits, shape.page_size)
    if offload is not None and config.offload.offload_above != offload.limits.above:
        reasons["offload_above"] = "what the KV pool holds"
    if asked.model_impl == "auto":
        has = "a" if spec.implementation == "native" else "no"
        reasons["model_impl"] = f"{spec.architecture} has {has} native implementation"
    dtype = str(spec.dtype).removeprefix("torch.")
    info = EngineInfo(
        model=name,
        folder=folder,
        is_bundled=is_bundled,
        architecture=spec.architecture,
        eos_token_ids=frozenset(spec.eos_token_ids),
        dtype=spec.dtype,
        device=device,
        limits=Limits(
            spec.vocab_size,
            spec.max_model_len,
            total,
            config.scheduler.schedule_policy == "priority",
            0 if offload is None else tiers.limits.pages_on(offload.limits.tier) * shape.page_size,
            kv_sizes.token_bytes,
        ),
        config=replace(
            config,
            model=replace(
                asked,
                model=asked.model or name,
                dtype=dtype,
                model_impl=spec.implementation,
                cpu_kernels=asked.cpu_kernels if spec.dtype in STEPS else TORCH,
                attention_backend=backend.name,
            ),
            cache=replace(config.cache, max_total_tokens=total),
            offload=replace(config.offload, offload_above=None if offload is None else offload.limits.above),
        ),
        reasons=reasons,
        pool_tokens=(shape.num_pages + shape.scratch_pages) * shape.page_size,
        kv_sizes=kv_sizes,
        memory=Footprint(weights_bytes=weights_bytes),
        offload_sizes=None if offload is None else offload.sizes(shape.page_size),
        offload_tier=None if offload is None else offload.limits.tier,
    )
    return LoadedModel(model, spec, shape, info, kernels, backend, rows, tiers, offload, logit_ops)


def _offload(
    config: EngineConfig, spec: ModelSpec, shape: DeviceShape, kv_sizes: KVSizes, weights_bytes: int
) -> OffloadSetup | None:
    """How contexts longer than the device are served, if there is a tier for them."""
    tier = offload_tier(config.cache, shape.device.type)
    if tier is None:
        return None
    scheduler = config.scheduler.limits()
    sizes = Sizes(
        tier=tier,
        page_bytes=kv_sizes.token_bytes * shape.page_size,
        page_size=shape.page_size,
        num_pages=shape.num_pages,
        num_layers=spec.num_layers,
        step_tokens=scheduler.chunked_prefill_size or scheduler.max_batch_tokens,
        device_type=shape.device.type,
    )
    limits = offload_limits(config.offload, sizes, costs_of(spec, kv_sizes, weights_bytes, shape.device.type))
    return None if limits is None else OffloadSetup.of(config.offload, limits, shape.page_size, spec.hidden_size)


def has_triton(device: torch.device) -> bool:
    """Whether Triton's kernels compute on a CUDA device; it is told if torch does instead."""
    problem = why_no_triton(CudaDevice.of(device))
    if problem is not None:
        LOGGER.warning("torch computes, more slowly: %s", problem)
    return problem is None


def use_triton(model: PagedLM) -> LogitOps:
    """Let Triton's kernels do the small operations of a model of our own; and what does those on its logits."""
    # Importing them needs the package, which machines without a GPU need not have.
    from sluice.models.triton_ops import TritonOps
    from sluice.runner.triton_logit_ops import TritonLogitOps

    if isinstance(model, CausalLM):
        model.use(TritonOps())
    return TritonLogitOps()


def _attention(config: EngineConfig, spec: ModelSpec, reasons: dict[str, str]) -> AttentionBackend:
    """Return the backend chosen for the machine if it supports the model, too; otherwise, if not set, the reference."""
    backend, page_size = backend_named(config.model.attention_backend), config.cache.page_size
    assert page_size is not None, f"not resolved: {config}"
    problem = backend.supports(spec.attention, page_size, torch.device(config.model.device))
    if problem is None:
        return backend
    if "attention_backend" not in reasons:
        raise ConfigError(f"--attention-backend {backend.name} cannot serve this model: {problem}")
    if backend.needs_kernels:
        if "cpu_kernels" not in reasons:
            raise ConfigError(f"--cpu-kernels {config.model.cpu_kernels} cannot serve this model: {problem}")
        reasons["cpu_kernels"] = f"attention on torch: {problem}"
    LOGGER.warning("torch attends, not %s: %s", backend.name, problem)
    reasons["attention_backend"] = f"not {backend.name}: {problem}"
    return REFERENCE


def _kernels_compute(backend: AttentionBackend, spec: ModelSpec) -> bool:
    """Return whether compiled CPU kernels do all that is large. In other types torch multiplies."""
    return backend.needs_kernels and spec.implementation == "native" and spec.dtype == torch.bfloat16


def _layer_weights(model: PagedLM, spec: ModelSpec) -> int:
    """Numbers in a model's layers."""
    tables = 1 if isinstance(model, CausalLM) and model.tied else 2
    return max(0, module_bytes(model) // spec.dtype.itemsize - tables * spec.vocab_size * spec.hidden_size)


def _load_kernels(config: EngineConfig, device: torch.device, reasons: Mapping[str, str]) -> Kernels | None:
    name = config.model.cpu_kernels
    if name == TORCH:
        if device.type == "cpu" and "cpu_kernels" in reasons:
            LOGGER.warning("torch computes, more slowly: %s", reasons["cpu_kernels"])
        return None
    assert config.model.threads is not None, f"not resolved: {config}"
    return Kernels(Library(), NAMES[name], config.model.threads)


def _device_shape(config: EngineConfig, spec: ModelSpec, device: torch.device, *, scratch_pages: int) -> DeviceShape:
    """The shape of a state whose pool has one page."""
    page_size, running = config.cache.page_size, config.scheduler.max_running_requests
    assert page_size is not None and running is not None, f"not resolved: {config}"
    return DeviceShape.of(
        spec,
        device,
        num_slots=running,
        num_pages=1,
        page_size=page_size,
        row_pages=-(-spec.max_model_len // page_size),
        scratch_pages=scratch_pages,
    )


def _pool_request(shape: DeviceShape, config: EngineConfig, spec: ModelSpec, kv_sizes: KVSizes) -> PoolRequest:
    return PoolRequest(
        page_size=shape.page_size,
        bytes_per_token=kv_sizes.token_bytes,
        max_model_len=spec.max_model_len,
        max_running_requests=shape.num_slots,
        max_total_tokens=config.cache.max_total_tokens,
    )


def _cuda_room(
    config: EngineConfig,
    spec: ModelSpec,
    device: torch.device,
    trial: StepTrial,
    graph_rows: Sequence[int],
    ring: int,
) -> Room:
    """What a GPU has for KV, once the largest step was run there.

    Args:
        ring: bytes of the ring through which long contexts pass; 0: there are none.
    """
    limits = config.scheduler.limits()
    # A prompt that may not be cut goes alone, however long it is.
    tokens = (
        limits.max_batch_tokens if limits.chunked_prefill_size else max(limits.max_batch_tokens, spec.max_model_len)
    )
    largest = StepLimits(limits.max_running_requests, tokens, spec.max_model_len)
    memory = cuda_memory(trial, largest, graph_rows, device)
    LOGGER.info("the largest step takes %.0f MiB beside weights and KV", memory.step / (1 << 20))
    if ring:  # a chunk that was put down keeps what it had, beside a step
        memory = replace(memory, step=2 * memory.step + ring)
    return cuda_room(memory, config.model.mem_fraction_static)
