"""A loaded model, and the engines that are built over it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sluice.assembly.adapter_loader import NO_RANKS, AdapterLoader
from sluice.assembly.cost_file import Key
from sluice.assembly.diffusion import denoising_of, with_blocks
from sluice.assembly.drafting import DraftSetup
from sluice.assembly.graphs import captured_graphs, kernels_compute
from sluice.assembly.info import EngineInfo
from sluice.assembly.offloading import OffloadSetup
from sluice.assembly.pacing import CostKeeper, KeptCosts, counts_of
from sluice.assembly.page_transfer import transfer_of
from sluice.assembly.peers import NO_PEERS, Peers
from sluice.assembly.states import state_limits
from sluice.assembly.tiers import NO_TIERS, OpenTiers, TierSetup
from sluice.attention.backend import AttentionBackend
from sluice.attention.ticking import TickingAttention
from sluice.device.transport import Transport, transport_for
from sluice.engine.clock import WallClock
from sluice.engine.engine import Engine
from sluice.engine.heartbeat import Heartbeat, LoadingPart, Phase
from sluice.engine.messages import Compiled
from sluice.engine.page_feed import PageFeed
from sluice.engine.protocols import Grammars, Link, Runner
from sluice.engine.trace import ChunkLog, PacingLog, RecentSteps, TraceSink
from sluice.engine.transfer import Handover
from sluice.kernels.cpu.library import Kernels
from sluice.kv.events import NO_EVENTS, EventLog, NoEvents
from sluice.models.adapters.bank import AdapterBank
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder
from sluice.models.spec import ModelSpec
from sluice.parallel.member import ALONE, Member
from sluice.runner.device_state import DeviceShape, DeviceState, KVMaker
from sluice.runner.features import NewGrammars
from sluice.runner.features.adapters import none_loaded
from sluice.runner.features.grammars import NO_GRAMMARS, GrammarMasks, Publish, keep
from sluice.runner.forwards import EagerForwards, Forwards, Model
from sluice.runner.grammar.base import CompiledGrammars
from sluice.runner.grammar.compiler import GrammarCompiler
from sluice.runner.grammar.guidance import END, Guidance
from sluice.runner.kernel_capture import cpu_graphs
from sluice.runner.known_tokens import KnownTokens
from sluice.runner.launched import OtherRanksResult
from sluice.runner.layers import LayerSlices, Stages
from sluice.runner.logit_ops import TORCH_LOGIT_OPS, LogitOps
from sluice.runner.nan_fault import NanFaultModel
from sluice.runner.offload.loaders import Report
from sluice.runner.open_blocks import Denoising
from sluice.runner.parallel.leader import Leader
from sluice.runner.runner import TorchRunner
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.scheduler import Scheduler
from sluice.scheduler.setup import SchedulerSetup
from sluice.text.tokenizer_files import load_tokenizer
from sluice.tracing.file import TraceFile
from sluice.tracing.format import VERSION, Header, Platform
from sluice.tracing.recorder import Recorder
from sluice.types import WindowLimits
from sluice.types.faults import Fault, FaultKind
from sluice.types.footprint import device_footprint
from sluice.version import VERSION as SLUICE_VERSION

LOGGER = logging.getLogger("sluice.engine")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and the sizes and limits that follow from it and the options. Several engines may share it."""

    model: PagedLM
    spec: ModelSpec
    shape: DeviceShape
    info: EngineInfo
    kernels: Kernels | None
    """The compiled ones, on a CPU that has them."""
    backend: AttentionBackend
    graph_rows: tuple[int, ...]
    """Numbers of rows of steps that are replayed as CUDA graphs; empty: no step is."""
    tiers: TierSetup
    """The tiers behind the device."""
    offload: OffloadSetup | None
    """How contexts longer than the device are served. None: they are refused."""
    logit_ops: LogitOps = TORCH_LOGIT_OPS
    pacing: Pacing | None = None
    """What is known of the time that steps take, if they have a target."""
    member: Member = ALONE
    """The rank that it is the part of; `spec` has the sizes of that part."""
    draft: DraftSetup | None = None
    """The runner's own drafter; None: the runner guesses nothing."""
    num_token_ids: int | None = None
    """Ids that the tokenizer has; those behind them are never sampled. None: all may be."""
    adapters: AdapterBank | None = None
    """The adapters beside the model; None: it takes none."""

    @property
    def new_kv(self) -> KVMaker:
        """Makes pages in the backend's layout."""
        return partial(self.backend.new_kv, kernels=self.kernels)

    @property
    def denoising(self) -> Denoising | None:
        """How blocks are filled; None for a model that generates token by token."""
        model = self.spec.diffusion
        return None if model is None else denoising_of(self.info.config.diffusion, model)

    @property
    def depth(self) -> int:
        """Steps in flight at once."""
        depth = self.info.config.scheduler.depth
        assert depth is not None, f"not resolved: {self.info.config}"
        return depth

    @property
    def windows(self) -> WindowLimits | None:
        """Pages of layers with a window; None: all layers have the same pages."""
        window = self.shape.window
        return None if window is None else WindowLimits(window.length, window.num_pages)

    def grammars(self, post: Callable[[Compiled], None]) -> GrammarCompiler:
        """Return what compiles the grammars of requests.

        Args:
            post: receives what becomes of them, from any thread.
        """
        folder = self.info.tokenizer_folder
        return GrammarCompiler(
            Guidance(lambda: load_tokenizer(folder, chat=False).serialized(END), self.spec.vocab_size), post
        )

    def state(self, grammars: CompiledGrammars = NO_GRAMMARS, publish: Publish = keep) -> DeviceState:
        """Return the state of an empty device.

        Args:
            grammars: finds the grammars of requests.
            publish: takes the masks of each step for other ranks.
        """
        return self.state_with(partial(GrammarMasks, grammars=grammars, publish=publish))

    def state_with(self, new_grammars: NewGrammars) -> DeviceState:
        """Return the state of an empty device.

        Args:
            new_grammars: makes the feature of grammars.
        """
        watched = self.info.config.model.debug_uninitialized_reads
        return DeviceState(
            self.shape,
            self.new_kv,
            watched=watched,
            new_grammars=new_grammars,
            denoising=self.denoising,
            adapter_slot_of=none_loaded if self.adapters is None else self.adapters.slot_of,
        )

    def runner(
        self,
        heartbeat: Heartbeat | None = None,
        faults: Sequence[Fault] = (),
        state: DeviceState | None = None,
        tiers: OpenTiers = NO_TIERS,
        report: Report | None = None,
        elsewhere: OtherRanksResult | None = None,
    ) -> TorchRunner:
        """Return a runner.

        Args:
            heartbeat: receives a sign of life from every layer and every second of waiting.
            faults: to inject; only those with NaN logits concern the runner.
            state: an empty state of its own; None: a new one.
            tiers: the tiers behind this state.
            report: called with blocks of offloaded chunks that were read ahead from a disk.
            elsewhere: waits for what other ranks sample; None: this one samples.
        """
        state, heartbeat = state or self.state(), heartbeat or Heartbeat()
        busy, waiting = partial(heartbeat.tick, Phase.BUSY), partial(heartbeat.tick, Phase.DEVICE)
        device, poison = self.shape.device, self.info.config.model.debug_uninitialized_reads
        attention = TickingAttention(self.backend.make(device, self.kernels, busy), busy)
        transport = transport_for(device, self.depth, poison=poison, tick=waiting)
        nan_faults = [fault for fault in faults if fault.kind is FaultKind.NAN]
        drafter = None if self.draft is None else self.draft.open(state, self.kernels, busy, self.logit_ops)
        target = self.model if self.draft is None or drafter is None else self.draft.over(self.model, drafter)
        model, drafted = (NanFaultModel(each, nan_faults) if nan_faults else each for each in (self.model, target))
        forwards: Forwards = EagerForwards(drafted, state, attention)
        if not nan_faults:
            forwards = self._captured(forwards, drafted, state, attention, transport, heartbeat)
        offload = None
        if self.offload is not None and tiers is not NO_TIERS:
            unplanned = TickingAttention(self.backend.make_unplanned(device, self.kernels, busy), busy)
            offload = self.offload.open(model, state, unplanned, self.new_kv, tiers, transport, report)
        return TorchRunner(
            self._without_padding(model),
            state,
            attention,
            transport=transport,
            forwards=forwards,
            logit_ops=self.logit_ops,
            tick=waiting,
            copies=tiers.copies,
            offload=offload,
            layers=self._layers(model, state, attention),
            elsewhere=elsewhere,
            drafter=drafter,
        )

    def _captured(
        self,
        eager: Forwards,
        model: Model,
        state: DeviceState,
        attention: TickingAttention,
        transport: Transport,
        heartbeat: Heartbeat,
    ) -> Forwards:
        """Return forwards that replay captured steps, where there are such, and leave the others to `eager`."""
        busy, with_adapters = partial(heartbeat.tick, Phase.BUSY), self.adapters is not None
        if self.graph_rows:
            far = partial(heartbeat.loading, LoadingPart.GRAPHS)
            rows = self.graph_rows
            return captured_graphs(
                eager, model, state, attention, transport, rows, busy, far, with_adapters=with_adapters
            )
        if self._captures_calls:
            assert self.kernels is not None, "only the kernels' calls are captured"
            return cpu_graphs(eager, model, state, attention, self.kernels, busy, with_adapters=with_adapters)
        return eager

    def _layers(self, model: Model, state: DeviceState, attention: TickingAttention) -> LayerSlices | None:
        """Return what computes chunks that are divided among steps, if there are to be any."""
        if not self.info.config.scheduler.sliced_chunk_size:
            return None
        assert isinstance(self.model, Decoder), f"a {type(self.model).__name__} whose chunks are sliced"
        walk = model.over(self.model.walk) if isinstance(model, NanFaultModel) else self.model.walk
        return LayerSlices(walk, state, attention, Stages(self.member.place, self.model.spec.num_layers))

    def _without_padding(self, model: Model) -> Model:
        """Return a model that gives no ids but those of the tokenizer, if the vocabulary is padded beyond them."""
        own = self.member.place.vocabulary(self.spec.vocab_size)
        if self.num_token_ids is None or self.num_token_ids >= own.stop:
            return model
        return KnownTokens(model, max(0, self.num_token_ids - own.start))

    @property
    def _captures_calls(self) -> bool:
        """Whether the kernels' calls of decodes are captured. A pass over a block is no decode."""
        is_alone = self.member.place.layout.size == 1 and self.spec.diffusion is None
        return is_alone and kernels_compute(self.backend, self.spec)

    def built(self, runner: TorchRunner) -> EngineInfo:
        """Return `info` with the memory that a runner allocated. Buffers are parts of the pool and of the ring."""
        info = self.info
        planned = device_footprint(info.kv_sizes, info.pool_tokens, info.offload_sizes, window_bytes=info.window_bytes)
        allocated = replace(
            runner.footprint(),
            weights_bytes=info.memory.weights_bytes,
            adapter_bytes=0 if self.adapters is None else self.adapters.num_bytes,
            prefill_buffer_bytes=planned.prefill_buffer_bytes,
            pipeline_buffer_bytes=planned.pipeline_buffer_bytes,
            decode_buffer_bytes=planned.decode_buffer_bytes,
        )
        return replace(info, memory=allocated)

    def setup(self) -> SchedulerSetup:
        """Return what a scheduler is built from."""
        config = self.info.config
        return SchedulerSetup(
            limits=with_blocks(
                replace(
                    config.scheduler.limits(),
                    pipeline_stages=config.parallel.pp_size,
                    num_draft_tokens=config.speculative.drafts(),
                    experts=counts_of(self.spec),
                    num_layers=self.model.spec.num_layers if config.scheduler.sliced_chunk_size else 0,
                    states=state_limits(self.shape, self.info.kv_sizes.token_bytes),
                    max_loras=0 if self.adapters is None else self.adapters.limits.max_loras,
                ),
                config.diffusion,
                self.spec,
            ),
            num_pages=self.shape.num_pages,
            page_size=self.shape.page_size,
            prefix_caching=config.cache.enable_prefix_caching,
            tiers=self.tiers.limits,
            offload=None if self.offload is None else self.offload.limits,
            pacing=self.pacing,
            drafting=config.speculative.limits(),
            windows=self.windows,
        )

    def scheduler(self, events: NoEvents = NO_EVENTS) -> Scheduler:
        """Return a scheduler with an empty pool.

        Args:
            events: receives what the prefix cache stores and gives up.
        """
        return self.setup().build(events)

    def engine(
        self,
        link: Link,
        runner: Runner | None = None,
        tiers: OpenTiers = NO_TIERS,
        trace: Path | None = None,
        costs: KeptCosts | None = None,
        grammars: Grammars | None = None,
        peers: Peers = NO_PEERS,
    ) -> Engine:
        """Return an engine over a new scheduler.

        Args:
            runner: as empty as the scheduler; None: a new one.
            tiers: to which the runner copies.
            trace: file to record to, made by `tracing.file.create`.
            costs: where to keep what is learnt of the time that steps take.
            grammars: compiles those of requests; None: requests have none.
            peers: what it tells others of its pages, and takes from them.
        """
        clock = WallClock()
        page_log = EventLog(self.shape.page_size)
        scheduler, recorder = self.scheduler(NO_EVENTS if peers.events is None else page_log), None
        log: TraceSink = ChunkLog(RecentSteps())
        if scheduler.state.pacer is not None:
            log = PacingLog(log)
            if costs is not None:
                log = CostKeeper(log, scheduler.state.pacer, costs, clock)
        journal = None if trace is None else self._trace_file(trace)
        if journal is not None:
            recorder = Recorder(scheduler, log, journal, clock, start=clock.now())
        if tiers.stored:
            (recorder or scheduler).restore(tiers.stored)
        engine = Engine(
            recorder or scheduler,
            runner or self.runner(),
            link,
            depth=self.depth,
            clock=clock,
            trace=recorder or log,
            grammars=grammars,
            feed=None if peers.events is None else PageFeed(page_log, peers.events),
            adapters=self._loader(link, runner, peers),
        )
        if peers.answer is not None:
            engine.handover = Handover(peers.answer, transfer_of(scheduler.state.kv, self.tiers, tiers))
        return engine

    def _loader(self, link: Link, runner: Runner | None, peers: Peers) -> AdapterLoader | None:
        """Return what reads and loads adapters, if there is room for any."""
        if self.adapters is None:
            return None
        ranks = runner if isinstance(runner, Leader) else NO_RANKS
        return AdapterLoader(self.adapters, link.post, peers.answer, ranks)

    def _platform(self) -> Platform:
        key = Key.of(self.info.config, self.info.device)
        return Platform(key.machine, key.kernels, key.dtype, key.threads)

    def _trace_file(self, path: Path) -> TraceFile | None:
        """Return a trace with its header, or None, which is logged, if the disk does not take even that: what is asked
        of an engine is to serve."""
        header = Header(
            version=VERSION,
            sluice=SLUICE_VERSION,
            model=self.info.model.encode(errors="replace").decode(),
            token_ids=self.info.config.trace.trace_token_ids,
            setup=self.setup(),
            depth=self.depth,
            unix_time=time.time(),
            machine=self._platform(),
            max_model_len=self.spec.max_model_len,
        )
        try:
            return TraceFile(path, header, key=secrets.token_bytes(16))
        except OSError as error:
            LOGGER.warning("--trace %s cannot be written: %s; this engine writes no trace", path, error.strerror)
            return None
