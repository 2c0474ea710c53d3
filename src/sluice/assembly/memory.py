"""The size of the KV pool. On a GPU the largest step is run first, to see what it takes beside weights and KV."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from sluice.assembly.drafting import DraftSetup
from sluice.assembly.graphs import graph_rows, kernels_compute
from sluice.assembly.kv_sizes import group_sizes
from sluice.assembly.largest_plan import EVERYTHING, StepLimits, largest_plan
from sluice.assembly.offloading import ring_bytes, room_beside_ring
from sluice.assembly.ranks import ranks_per_node
from sluice.assembly.states import state_memory
from sluice.assembly.windows import because, shown_windows, window_request, windows_of, with_windows
from sluice.attention.backend import AttentionBackend
from sluice.attention.select import kv_dtype
from sluice.attention.states import BLOCK
from sluice.config import EngineConfig, MemoryShortage
from sluice.device.machine import free_memory
from sluice.device.memory import CudaMemory, PoolRequest, Room, WindowRequest, cpu_room, cuda_room, pool_pages
from sluice.device.queues import noop
from sluice.device.transport import transport_for
from sluice.models.base import PagedLM
from sluice.models.decoder import Decoder
from sluice.models.spec import ModelSpec
from sluice.parallel.layout import Place
from sluice.runner.device_state import DeviceShape, DeviceState
from sluice.runner.forwards import EagerForwards, Model
from sluice.runner.launched import OtherRanksResult
from sluice.runner.logit_ops import LogitOps
from sluice.runner.parallel.follower import elsewhere
from sluice.runner.runner import TorchRunner
from sluice.scheduler.drafting.draft_rows import most_drafts
from sluice.types import SamplingParams, SchedulerLimits
from sluice.types.footprint import KVSizes

LOGGER = logging.getLogger("sluice.engine")
GRAPH_BYTES = 16 << 20
"""What a CUDA graph takes beside the memory that its kernels write to."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What an engine allocates on its device."""

    shape: DeviceShape
    kv_sizes: KVSizes
    """Of all layers, or of those without a window."""
    graph_rows: tuple[int, ...]
    """Numbers of rows of steps that are replayed as CUDA graphs."""
    reasons: Mapping[str, str]
    """Why it is so, by option."""
    window_sizes: KVSizes | None = None
    """Of the layers with a window, if they have pages of their own."""
    window_request: WindowRequest | None = None

    @property
    def window_bytes(self) -> int:
        """Bytes of the pages of layers with a window; 0: all layers have the same pages."""
        window, sizes = self.shape.window, self.window_sizes
        if window is None or sizes is None:
            return 0
        return window.allocated(self.shape.scratch_pages) * self.shape.page_size * sizes.token_bytes

    def with_pages(self, pages: int) -> Memory:
        """Return the same with so many pages."""
        shape, window = self.shape, self.shape.window
        shape = replace(shape, num_pages=pages, row_pages=min(pages, shape.row_pages))
        if window is not None and self.window_request is not None:
            shape = replace(shape, window=replace(window, num_pages=self.window_request.pages_beside(pages)))
        return replace(self, shape=shape)


def plan_memory(
    config: EngineConfig,
    model: PagedLM,
    spec: ModelSpec,
    backend: AttentionBackend,
    logit_ops: LogitOps,
    device: torch.device,
    place: Place,
    draft: DraftSetup | None = None,
    adapter_bytes: int = 0,
    *,
    shares_pages: bool = False,
    may_lower: bool = False,
) -> Memory:
    """Decide on CUDA graphs and on the size of the KV pool.

    Args:
        spec: of this rank's part.
        place: of this rank. On a GPU all ranks call this alike, as the largest step runs on all of them.
        draft: the runner's own drafter, if there is one.
        adapter_bytes: of slots of adapters. On a CPU the system has not committed their memory yet.
        shares_pages: whether the engine takes pages of others.
        may_lower: whether there may be fewer running requests than `config` says, if a model's states take too much.

    Raises:
        ConfigError: an option that cannot be honoured; a `MemoryShortage` if there is too little memory.
    """
    rows, why_rows = graph_rows(config, spec, device, backend)
    windowed, why_no_windows = windows_of(config, model, spec, backend, shares_pages=shares_pages)
    kv_sizes, window_sizes = group_sizes(config, spec, backend, windowed)
    of_windows = window_request(config, spec, windowed, window_sizes)
    shape = with_windows(_one_page(config, spec, backend, device, place, rows), windowed, of_windows)
    if device.type == "cuda":
        samples = _most_samples(config, spec, shape.num_slots)
        passes_on = None if place.is_last else elsewhere
        trial = StepTrial(model, replace(shape, num_slots=samples), backend, logit_ops, passes_on, draft)
        room = _cuda_room(config, model, spec, device, trial, rows, ring_bytes(config.offload, kv_sizes), samples)
    else:
        free = max(0, free_memory(device) // ranks_per_node(config.parallel) - adapter_bytes)
        room = cpu_room(room_beside_ring(config.offload, kv_sizes, free))
    token_bytes = kv_sizes.token_bytes + (0 if draft is None else draft.sizes.token_bytes)
    why = {"cuda_graph_max_bs": why_rows}
    if shape.state is not None:
        states = state_memory(config, shape, token_bytes, room, may_lower=may_lower)
        shape, room = replace(shape, num_slots=states.num_slots, num_records=states.num_records), states.room
        why |= states.reasons
    shape, why_pool = _with_pool(shape, config, spec, token_bytes, room, of_windows)
    shape = with_windows(shape, windowed, of_windows)
    why_windows = why_no_windows if shape.window is None else shown_windows(shape.window, shape.page_size)
    return Memory(shape, kv_sizes, rows, {**why, **because(why_pool, why_windows)}, window_sizes, of_windows)


def _one_page(
    config: EngineConfig,
    spec: ModelSpec,
    backend: AttentionBackend,
    device: torch.device,
    place: Place,
    graph_rows: Sequence[int],
) -> DeviceShape:
    """Return the shape that the options ask for, but for the number of pages: it has one."""
    page_size, running = config.cache.page_size, config.scheduler.max_running_requests
    assert page_size is not None and running is not None, f"not resolved: {config}"
    shape = DeviceShape.of(
        spec,
        device,
        num_slots=running,
        num_pages=1,
        page_size=page_size,
        row_pages=-(-spec.max_model_len // page_size),
        scratch_pages=1 if graph_rows or kernels_compute(backend, spec) else 0,
        reach=reach_of(config),
    )
    vocabulary = place.vocabulary(spec.vocab_size) if place.layout.tensor_size > 1 else None
    page_dtype = kv_dtype(config.model.kv_cache_dtype, backend) or spec.dtype
    return replace(shape, kv_dtype=page_dtype, vocabulary=vocabulary)


def reach_of(config: EngineConfig) -> int:
    """Return how many tokens of a request may be computed behind the firm ones: its last known one, which is computed
    again if it brings nothing, and the unread samples or the drafts behind that."""
    lookahead = config.scheduler.lookahead
    assert lookahead is not None, f"not resolved: {config}"
    return 1 + max(lookahead, config.speculative.drafts())


def _most_samples(config: EngineConfig, spec: ModelSpec, running: int) -> int:
    """Return the positions at which a step samples at most. A request samples behind each of its drafts, and at every
    position of its open block, as so many decodes do. One whose context is longer than the device has drafts besides
    those of the others."""
    if spec.diffusion is not None:
        return running * spec.diffusion.block_size
    drafts = config.speculative.drafts()
    return running + min(running * drafts, most_drafts(drafts) + drafts)


def _with_pool(
    shape: DeviceShape,
    config: EngineConfig,
    spec: ModelSpec,
    token_bytes: int,
    room: Room,
    of_windows: WindowRequest | None,
) -> tuple[DeviceShape, dict[str, str]]:
    """Return a shape with as many pages as were set, or fit, and why there are so many.

    Args:
        token_bytes: of a position, with what a drafter keeps.
        of_windows: pages that layers with a window have beside these.
    """
    asked = config.cache.max_total_tokens
    wanted = PoolRequest(
        page_size=shape.page_size,
        bytes_per_token=token_bytes,
        max_model_len=spec.max_model_len,
        max_running_requests=shape.num_slots,
        max_total_tokens=asked,
        window=of_windows,
    )
    pages = pool_pages(wanted, room)
    why: dict[str, str] = {}
    if asked is None:
        is_enough = pages == wanted.useful_pages
        why["max_total_tokens"] = "all that --max-running-requests can use" if is_enough else room.reason
    elif asked != pages * shape.page_size:
        why["max_total_tokens"] = f"{asked} in whole pages"
    return replace(shape, num_pages=pages, row_pages=min(pages, shape.row_pages)), why


def _cuda_room(
    config: EngineConfig,
    model: PagedLM,
    spec: ModelSpec,
    device: torch.device,
    trial: StepTrial,
    graph_rows: Sequence[int],
    ring: int,
    samples: int,
) -> Room:
    """Run the largest step on a GPU and return what is left for KV.

    Args:
        ring: bytes of the ring of offloaded contexts; 0 without one.
        samples: most positions at which a step samples.
    """
    limits = config.scheduler.limits()
    tokens = limits.max_batch_tokens
    if not limits.chunked_prefill_size:  # a prompt that may not be cut goes alone, however long it is
        tokens = max(tokens, spec.max_model_len)
    tokens = max(tokens, limits.sliced_chunk_size)
    largest = StepLimits(samples, max(tokens, samples), spec.max_model_len)
    memory = cuda_memory(trial, largest, graph_rows, device)
    LOGGER.info("the largest step takes %.0f MiB beside weights and KV", memory.step / (1 << 20))
    if ring:  # a paused chunk keeps its tensors beside a step
        memory = replace(memory, step=2 * memory.step + ring)
    memory = replace(memory, step=memory.step + open_chunk_bytes(limits, model))
    return cuda_room(memory, config.model.mem_fraction_static, config.model.gpu_memory_utilization)


def open_chunk_bytes(limits: SchedulerLimits, model: PagedLM) -> int:
    """Return the bytes that sliced chunks keep between two of their layers, at most: of each token the residual and
    what is to be added to it, angles, and what the layers get beside these."""
    if not limits.sliced_chunk_size:
        return 0
    assert isinstance(model, Decoder), f"a {type(model).__name__} whose chunks are sliced"
    spec, places = model.spec, limits.max_partial_prefills * max(1, len(limits.classes))
    of_layers = len(model.rotaries) * 2 * spec.head_dim + len(model.layers) * model.config.extra_size
    of_token = (2 * spec.hidden_size + of_layers) * spec.dtype.itemsize
    return min(places, limits.max_running_requests) * limits.sliced_chunk_size * of_token


class StepTrial:
    """Runs steps on meaningless data, over a state with a single page.

    Args:
        shape: of the later state; the number of its pages does not matter.
        elsewhere: stands for the ranks that sample; None: this one does.
        draft: the runner's own drafter, if there is one.
    """

    def __init__(
        self,
        model: PagedLM,
        shape: DeviceShape,
        backend: AttentionBackend,
        logit_ops: LogitOps,
        elsewhere: OtherRanksResult | None = None,
        draft: DraftSetup | None = None,
    ) -> None:
        self._model = model
        self._block = 1 if shape.state is None else BLOCK
        window = None if shape.window is None else replace(shape.window, num_pages=1)
        shape = replace(shape, num_pages=1, scratch_pages=0, window=window)
        self._shape = replace(shape, num_records=0 if shape.state is None else 1, shares_state=True)
        self._new_kv = partial(backend.new_kv, kernels=None)
        self._attention = backend.make(shape.device, None, noop)
        self._logit_ops = logit_ops
        self._elsewhere = elsewhere
        self._draft = draft

    def run(self, limits: StepLimits, sampling: SamplingParams = EVERYTHING) -> None:
        """Run the largest step within some limits. All its requests sample by `sampling`."""
        device, attention = self._shape.device, self._attention
        state, target, drafter = DeviceState(self._shape, self._new_kv), self._model, None
        drafted: Model = target
        if self._draft is not None:
            drafter = self._draft.open(state, None, noop, self._logit_ops)
            drafted = self._draft.over(target, drafter)
        runner = TorchRunner(
            target,
            state,
            attention,
            transport=transport_for(device, num_buffers=1),
            forwards=EagerForwards(drafted, state, attention),
            logit_ops=self._logit_ops,
            elsewhere=self._elsewhere,
            drafter=drafter,
        )
        plan = largest_plan(
            limits, self._shape.page_size, sampling, self._block, has_windows=self._shape.window is not None
        )
        runner.launch(plan).wait()


def cuda_memory(trial: StepTrial, limits: StepLimits, graph_rows: Sequence[int], device: torch.device) -> CudaMemory:
    """Return a GPU's memory, with what the largest step takes and what CUDA graphs will take.

    A second step, of plain decodes, is run so that everything that is compiled at its first use has been compiled.

    Args:
        graph_rows: numbers of rows that graphs will be captured for, ascending.

    Raises:
        MemoryShortage: there is not enough for such a step.
    """
    try:
        step = _peak(trial, limits, EVERYTHING, device)
        rows = graph_rows[-1] if graph_rows else 1
        decodes = _peak(trial, StepLimits(rows, rows, limits.context), SamplingParams(seed=0, top_p=0.9), device)
        graphs = decodes + GRAPH_BYTES * len(graph_rows) if graph_rows else 0
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise MemoryShortage(
            f"a step of {limits.tokens} tokens and {limits.rows} requests does not fit into {device}: {free >> 20} of"
            f" {total >> 20} MiB are free beside the model; lower --chunked-prefill-size, --max-batch-tokens or"
            f" --max-running-requests"
        ) from error
    free, total = torch.cuda.mem_get_info(device)
    return CudaMemory(total, free, step, graphs)


def _peak(trial: StepTrial, limits: StepLimits, sampling: SamplingParams, device: torch.device) -> int:
    """Return the bytes that torch's allocator reserved for a step; all of them are given back."""
    torch.cuda.synchronize(device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    try:
        trial.run(limits, sampling)
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_reserved(device) - before
    finally:
        gc.collect()  # a step's closures may hold each other, and its tensors
        torch.cuda.empty_cache()
