"""Steps that only decode, replayed as graphs: hundreds of kernels for the price of one launch.

A graph is the forward of a fixed number of rows over tensors at fixed addresses. A step of fewer rows is padded: each
added row sees one token in the scratch page, which no request owns, and its results are not read. Graphs of all sizes
share one pool of memory, so the largest is captured first and the others fit into what it took. They share their
inputs, too, since only one runs at a time.

    inputs (one copy) ---> ids, positions, KV slots, slots, lengths      static
    last tokens, page table rows of these slots                          static, filled by a few kernels
    replay                                                               -> hidden states, one row a row

Where graphs are captured on demand, as on a CPU, steps whose rows all have the same few tokens, drafts among them, have
graphs too. They are not padded.

The head and the sampling stay outside: they are a few kernels, depend on the sampling parameters, and logits of padded
rows would be wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from sluice.attention.base import Attention, ForwardBatch, WindowRows
from sluice.attention.states import StateRows, StateTable
from sluice.device.queues import noop
from sluice.device.transport import Arrived, lay_out, views
from sluice.runner.device_state import DeviceState
from sluice.runner.features.adapters import NO_ADAPTER
from sluice.runner.forwards import Forwards, Model
from sluice.runner.inputs import ADAPTERS, LATE_SLOTS, LOGIT_ROWS, PER_ROW, WINDOW_SLOTS, HostBatch, Ints

MOST_DRAFTED = 32
"""Tokens of the largest step with drafts that is captured. With more, Python's share of it is small."""


class GraphShape(NamedTuple):
    """The rows of a graph, and the tokens of each."""

    rows: int
    length: int = 1
    has_adapters: bool = False
    """Whether some of its tokens may have an adapter. The others are computed without, and not by way of these."""


class Captured(NamedTuple):
    """Work that can be replayed."""

    output: torch.Tensor
    """What the work returned; every replay writes it anew."""
    replay: Callable[[], None]


class Capture(Protocol):
    """Captures work on tensors, so that it can be replayed without its code."""

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        """Capture `work`, on the compute queue. It may be called several times before it is captured."""
        ...


class CudaCapture:
    """Captures CUDA graphs, all of them into one pool of memory.

    Args:
        device: where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        for _ in range(2):  # kernels are compiled and workspaces allocated; a capture may do neither
            work()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = work()
        return Captured(output, graph.replay)


def graph_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows to capture graphs for, ascending. Padding adds at most 7 rows, or doubles a few."""
    return (*(size for size in (1, 2, 4, *range(8, most, 8)) if size < most), most)


@dataclass(frozen=True, slots=True)
class _StaticStep:
    """The inputs of a graph, at their fixed addresses."""

    batch: ForwardBatch
    row_slots: torch.Tensor


class DecodeGraphs:
    """Replays steps that only decode, with drafts if all rows have as many, and have neither targets nor embeddings;
    runs the others eagerly.

    Graphs are captured by `capture_all`, before which every step is eager, or each when a step first needs it.

    Args:
        eager: runs the other steps.
        model: what is captured.
        state: its shape has a scratch page.
        attention: the backend that the model's layers call; it reads lengths on the device only.
        capture: makes graphs.
        sizes: numbers of rows, ascending; steps with more run eagerly.
        busy: called before each replay, whose layers do not tick.
        on_demand: capture a graph when a step first needs it: where a capture runs the work once, and computes it.
            Only then steps with drafts have graphs.
        with_adapters: capture steps with adapters, too, in graphs of their own.
    """

    def __init__(
        self,
        eager: Forwards,
        model: Model,
        state: DeviceState,
        attention: Attention,
        capture: Capture,
        sizes: Sequence[int],
        *,
        busy: Callable[[], None] = noop,
        on_demand: bool = False,
        with_adapters: bool = False,
    ) -> None:
        assert state.shape.scratch_pages, f"padded rows need a page to write to: {state.shape}"
        self._eager = eager
        self._model = model
        self._state = state
        self._attention = attention
        self._capture = capture
        self._busy = busy
        self._on_demand = on_demand
        self._with_adapters = with_adapters
        self._sizes = tuple(sizes)
        shape, most = state.shape, self._sizes[-1]
        tokens = max(most, MOST_DRAFTED) if on_demand else most
        num_bytes = lay_out(self._padding(tokens).arrays[:PER_ROW])[-1].end
        self._inputs = torch.zeros(num_bytes, dtype=torch.uint8, device=shape.device)
        self._table = torch.zeros((most, shape.row_pages), dtype=torch.int32, device=shape.device)
        self._window: WindowRows | None = None
        """The largest step's, if layers with a window have pages of their own."""
        if shape.window is not None:
            of_tokens = torch.zeros(tokens, dtype=torch.int64, device=shape.device)
            self._window = WindowRows(of_tokens, torch.zeros_like(self._table))
        self._rows = torch.arange(tokens + 1, device=shape.device)
        self._starts = self._rows.to(torch.int32)
        self._adapters = torch.full((tokens,), NO_ADAPTER, dtype=torch.int32, device=shape.device)
        self._static: dict[GraphShape, _StaticStep] = {}
        self._graphs: dict[GraphShape, Captured] = {}

    @torch.inference_mode()
    def capture_all(self, report: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Capture every size, the largest first. Called on the compute queue, before the first step.

        Args:
            report: called with the number of sizes that are captured, and that of all.
        """
        kinds = (True, False) if self._with_adapters else (False,)
        shapes = [GraphShape(size, 1, kind) for size in reversed(self._sizes) for kind in kinds]
        for done, shape in enumerate(shapes):
            report(done, len(shapes))
            self._graphs[shape] = self._captured(shape)

    def _captured(self, shape: GraphShape) -> Captured:
        static = self._static_of(shape)
        self._fill_with_padding(static, shape.rows)
        self._attention.plan_static(static.batch)
        return self._capture(lambda: self._forward(static.batch))

    def padded(self, host: HostBatch) -> HostBatch:
        shape = self._shape_for(host)
        missing = 0 if shape is None else shape.rows - len(host.row_slots)
        if not missing:
            return host
        filler, adapters = self._padding(missing), host.adapters
        if adapters is not None:
            adapters = np.concatenate((adapters, np.full(missing, NO_ADAPTER, dtype=np.int32)))
        return replace(
            host,
            adapters=adapters,
            states=None if host.states is None else host.states.padded(self._state.shape.num_slots, missing),
            window_slots=_joined(host.window_slots, filler.window_slots),
            input_ids=np.concatenate((host.input_ids, filler.input_ids)),
            positions=np.concatenate((host.positions, filler.positions)),
            kv_slots=np.concatenate((host.kv_slots, filler.kv_slots)),
            row_slots=np.concatenate((host.row_slots, filler.row_slots)),
            kv_lens=np.concatenate((host.kv_lens, filler.kv_lens)),
            q_starts=np.arange(len(host.row_slots) + missing + 1, dtype=np.int32),
            num_decodes=len(host.row_slots) + missing,
        )

    def run(self, laid: HostBatch, arrived: Arrived) -> torch.Tensor:
        shape = self._shape_for(laid)
        if shape is None:
            return self._eager.run(laid, arrived)
        self._busy()
        logit_rows, late_tokens, late_slots = arrived.tensors[LOGIT_ROWS : LATE_SLOTS + 1]
        static = self._static_of(shape)
        batch = static.batch
        arrived.copy_to(self._inputs, PER_ROW)
        if batch.adapters is not None:
            batch.adapters.copy_(arrived.tensors[ADAPTERS])
        if batch.window is not None:
            batch.window.kv_slots.copy_(arrived.tensors[WINDOW_SLOTS])
        if laid.states is not None:
            assert batch.states is not None and batch.states.table is not None, "a graph of a model without states"
            batch.states.table.fill(laid.states, batch.q_lens)
        batch.input_ids.index_copy_(0, late_tokens, self._state.last_tokens.read(late_slots))
        self._fill_table(static)
        self._attention.plan_static(replace(batch, kv_lens_host=tuple(laid.kv_lens.tolist())))
        if shape in self._graphs:
            graph = self._graphs[shape]
            graph.replay()
        else:  # the capture computes this very step
            graph = self._graphs[shape] = self._capture(lambda: self._forward(batch))
        # The rows of a step come first, and mostly all of their tokens are sampled behind: then no gather is needed.
        count = len(laid.logit_rows)
        is_prefix = count == 0 or laid.logit_rows[-1] == count - 1
        return graph.output[:count] if is_prefix else graph.output.index_select(0, logit_rows)

    def _shape_for(self, host: HostBatch) -> GraphShape | None:
        rows, has_adapters = len(host.row_slots), host.adapters is not None
        if rows > self._sizes[-1] or len(host.target_ids) or len(host.embed_rows):
            return None
        if has_adapters and not self._with_adapters:
            return None
        if not (self._graphs or self._on_demand):
            return None
        if host.states is not None and len(host.states.exports) > rows:
            return None
        if host.num_decodes < rows:
            return self._drafted_shape(host) if host.drafts is not None and self._on_demand else None
        return GraphShape(next(size for size in self._sizes if size >= rows), 1, has_adapters)

    @staticmethod
    def _drafted_shape(host: HostBatch) -> GraphShape | None:
        """Return the shape of a step with drafts, if its rows are equally long and their tokens known."""
        assert host.drafts is not None, "a step without drafts"
        tokens, rows = len(host.input_ids), len(host.row_slots)
        shape = GraphShape(rows, tokens // rows, host.adapters is not None)
        starts = np.arange(0, tokens + 1, shape.length)
        fits = tokens <= MOST_DRAFTED and host.drafts.are_known
        return shape if fits and np.array_equal(starts, host.q_starts) else None

    def _padding(self, count: int) -> HostBatch:
        """Return rows that only pad a batch: one token each, at the beginning of the scratch page."""
        shape, none = self._state.shape, np.empty(0, dtype=np.int64)
        zeros = np.zeros(count, dtype=np.int64)
        return HostBatch(
            input_ids=zeros,
            positions=zeros,
            kv_slots=zeros + shape.num_pages * shape.page_size,
            late_tokens=none,
            late_slots=none,
            row_slots=zeros + shape.num_slots,
            q_starts=np.arange(count + 1, dtype=np.int32),
            kv_lens=np.ones(count, dtype=np.int32),
            sample_rows=none,
            sample_slots=none,
            logit_rows=none,
            sample_positions=none,
            embed_rows=none,
            target_ids=none,
            target_rows=(),
            num_pages=1,
            num_decodes=count,
            window_slots=None if shape.window is None else zeros + shape.window.num_pages * shape.page_size,
        )

    def _static_of(self, shape: GraphShape) -> _StaticStep:
        if shape not in self._static:
            self._static[shape] = self._static_step(shape)
        return self._static[shape]

    def _static_step(self, shape: GraphShape) -> _StaticStep:
        rows, length, has_adapters = shape
        of_tokens, of_rows = self._padding(rows * length).arrays[:3], self._padding(rows).arrays[3:PER_ROW]
        arrays = (*of_tokens, *of_rows)
        ids, positions, kv_slots, row_slots, kv_lens = views(self._inputs, arrays, lay_out(arrays))
        batch = ForwardBatch(
            input_ids=ids,
            positions=positions,
            kv_slots=kv_slots,
            page_table=self._table[:rows],
            q_starts=self._starts[: rows * length + 1 : length].contiguous(),
            kv_lens=kv_lens,
            logit_rows=self._rows[: rows * length],
            q_lens=(length,) * rows,
            kv_lens_host=(length,) * rows,
            num_decodes=rows if length == 1 else 0,
            adapters=self._adapters[: rows * length] if has_adapters else None,
            states=self._states(rows),
            layer_states=() if self._state.states is None else self._state.states.pool.layers,
            window=None if self._window is None else _part(self._window, rows, rows * length),
        )
        return _StaticStep(batch, row_slots)

    def _states(self, rows: int) -> StateRows | None:
        """Return where rows that only pad a step find their states, with room for the steps of the graph."""
        if self._state.states is None:
            return None
        padding = StateRows((), (), (), ()).padded(self._state.shape.num_slots, rows)
        return replace(padding, table=StateTable.empty(rows, rows))

    def _fill_with_padding(self, static: _StaticStep, size: int) -> None:
        host, batch = self._padding(size), static.batch
        self._adapters.fill_(NO_ADAPTER)
        targets = (batch.input_ids, batch.positions, batch.kv_slots, static.row_slots, batch.kv_lens)
        for target, array in zip(targets, host.arrays[:PER_ROW], strict=True):
            target.copy_(torch.from_numpy(array))
        if batch.window is not None and host.window_slots is not None:
            batch.window.kv_slots.copy_(torch.from_numpy(host.window_slots))
        self._fill_table(static)

    def _fill_table(self, static: _StaticStep) -> None:
        table, page_size, batch = self._state.page_table, self._state.shape.page_size, static.batch
        batch.page_table.copy_(table.rows(static.row_slots, batch.kv_lens, table.row_pages, page_size))
        if batch.window is not None:
            sizes = table.row_pages, page_size
            rows = table.window_rows(static.row_slots, batch.kv_lens, batch.q_starts, *sizes)
            batch.window.page_table.copy_(rows)

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        return self._model.forward(batch, self._state.kv, self._attention)


def _part(window: WindowRows, rows: int, tokens: int) -> WindowRows:
    """Return the part of a smaller step."""
    return WindowRows(window.kv_slots[:tokens], window.page_table[:rows])


def _joined(own: Ints | None, others: Ints | None) -> Ints | None:
    """Return two arrays as one, if there are any."""
    return None if own is None or others is None else np.concatenate((own, others))
