"""Chunks that take several steps among the rows of a step: they are computed separately, and sampled and scored with
the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from sluice.device.queues import DoneEvent, Event, wait_until
from sluice.runner.inputs import HostBatch, HostDrafts, Ints
from sluice.runner.layers import LayerSlices
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.offload.offloader import OffloadFailed
from sluice.types import BatchPlan, BatchResult, Chunk, ChunkSlice, RowError


class SliceRunner(Protocol):
    """Runs slices of offloaded chunks: an `Offloader`."""

    def open_slots(self, slots: Sequence[int]) -> None:
        """Forget what was kept for these slots: they belong to other requests now."""
        ...

    def run(self, step: int, part: ChunkSlice) -> torch.Tensor | None:
        """Do the work items of a slice: see `Offloader.run`."""
        ...

    @property
    def ring_bytes(self) -> int:
        """Bytes of the ring."""
        ...

    @property
    def bounds_bytes(self) -> int:
        """Bytes of what a sparse policy keeps of pages."""
        ...

    def close(self) -> None:
        """Load no more. May be called again."""
        ...

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        """Return hidden states of NaN, in the place of those of a chunk that failed."""
        ...

    @property
    def totals(self) -> LoadTotals:
        """Totals of the blocks that were loaded so far."""
        ...


class NoOffload:
    """A `SliceRunner` where every context fits the device."""

    ring_bytes = bounds_bytes = 0

    def close(self) -> None:
        pass

    def open_slots(self, slots: Sequence[int]) -> None:
        pass

    def run(self, step: int, part: ChunkSlice) -> torch.Tensor | None:
        raise OffloadFailed("there is no ring")

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        raise OffloadFailed("there is no ring")

    @property
    def totals(self) -> LoadTotals:
        return LoadTotals()


@dataclass(frozen=True, slots=True)
class SlicedWork:
    """The slices of a plan."""

    step: int
    opened: tuple[int, ...]
    """Slots that other requests have now."""
    slices: tuple[ChunkSlice, ...]
    given_up: tuple[int, ...] = ()
    """Slots whose resident chunk will not be completed."""

    @property
    def done(self) -> list[Chunk]:
        """The chunks that are completed."""
        return [part.chunk for part in self.slices if part.completes]


def ordinary(plan: BatchPlan) -> BatchPlan:
    """Return the plan without the chunks that slices complete, which are its last ones."""
    return replace(plan, chunks=plan.whole_chunks) if plan.slices else plan


def with_sliced(host: HostBatch, work: SlicedWork, chunks: Sequence[Chunk]) -> HostBatch:
    """Return the rows of a step with those of completed slices behind them, as far as sampling and scoring need them.

    Args:
        chunks: of all rows.
    """
    if not work.done:
        return host
    rows = list(enumerate(work.done, start=len(host.row_slots)))
    samples = [
        (row, chunk.slot, position)
        for row, chunk in rows
        if chunk.samples
        for position in range(chunk.known_end, chunk.end + 1)
    ]
    return replace(
        host,
        row_slots=_more(host.row_slots, [chunk.slot for chunk in work.done]),
        sample_rows=_more(host.sample_rows, [row for row, _, _ in samples]),
        sample_slots=_more(host.sample_slots, [slot for _, slot, _ in samples]),
        sample_positions=_more(host.sample_positions, [position for _, _, position in samples]),
        embed_rows=_more(host.embed_rows, [row for row, chunk in rows if chunk.embeds]),
        target_ids=_more(host.target_ids, [token for chunk in work.done for token in chunk.targets]),
        target_rows=(*host.target_rows, *((row, len(chunk.targets)) for row, chunk in rows if chunk.targets)),
        drafts=HostDrafts.of([chunk for chunk in chunks if chunk.samples]),
    )


class SlicesDone(NamedTuple):
    """The results of the slices of a step."""

    hidden: torch.Tensor | None
    """[S + E + T, hidden_size] of all rows of the step: all samples, all embeddings, all targets; None if there are
    none."""
    errors: tuple[RowError, ...]
    """The slices that failed, by index."""


@dataclass(frozen=True, slots=True)
class SliceRunners:
    """What runs slices."""

    offload: SliceRunner
    layers: LayerSlices | None = None
    """Runs those of resident chunks; None: plans have none."""

    def open_slots(self, slots: Sequence[int]) -> None:
        """Forget what was kept for these slots: they belong to other requests now."""
        self.offload.open_slots(slots)
        if self.layers is not None:
            self.layers.drop(slots)

    def run(self, step: int, part: ChunkSlice) -> torch.Tensor | None:
        """Do the work items of a slice of a checked plan: see `Offloader.run`."""
        if not part.is_resident:
            return self.offload.run(step, part)
        assert self.layers is not None, f"{part} was not checked"
        return self.layers.run(part)

    def problem_of(self, plan: BatchPlan) -> str | None:
        """Return why the slices of a plan cannot be run."""
        layers = [part for part in plan.slices if part.is_resident]
        if layers and self.layers is None:
            return "it divides the layers of a chunk, and this model has none to divide"
        if isinstance(self.offload, NoOffload) and any(not part.is_resident for part in plan.slices):
            return "it has offloaded chunks, and there is no ring"
        return None if self.layers is None else next(filter(None, map(self.layers.problem_of, layers)), None)


def run_slices(
    runners: SliceRunners, work: SlicedWork, hidden: torch.Tensor | None, counts: tuple[int, int, int]
) -> SlicesDone:
    """Do the slices of a step, and drop what was given up.

    Args:
        hidden: [S + E + T, hidden_size] of the other rows; None if there are none.
        counts: S, E and T of these.
    """
    errors: list[RowError] = []
    rows = [] if hidden is None else [hidden.split(counts)]
    for index, part in enumerate(work.slices):
        try:
            own = runners.run(work.step, part)
        except OffloadFailed as error:
            errors.append(RowError(index, str(error)))
            own = runners.offload.failed(part) if part.completes else None
        if own is not None:
            rows.append(own.split((part.chunk.num_samples, int(part.chunk.embeds), len(part.chunk.targets))))
    if runners.layers is not None:
        runners.layers.drop(work.given_up)
    parts = [part for kind in zip(*rows, strict=True) for part in kind]
    return SlicesDone(torch.cat(parts) if parts else None, tuple(errors))


class SlicesStep:
    """A step with nothing but slices that complete no chunk: it has no rows to lay out, sample or bring to the host.

    Args:
        tick: called every second while the host waits for the step.
    """

    def __init__(self, runners: SliceRunners, work: SlicedWork, tick: Callable[[], None]) -> None:
        self._runners = runners
        self._work = work
        self._tick = tick
        self._errors: tuple[RowError, ...] = ()
        self.done: Event = DoneEvent()
        """The device has done the step."""

    @torch.inference_mode()
    def compute(self) -> None:
        self._errors = run_slices(self._runners, self._work, None, (0, 0, 0)).errors

    def wait(self) -> BatchResult:
        """Block until the step is done, and return its result."""
        wait_until(self.done.query, self._tick)
        return BatchResult(self._work.step, (), slice_errors=self._errors)


def _more(values: Ints, others: Sequence[int]) -> Ints:
    return np.concatenate((values, np.array(others, dtype=np.int64)))
