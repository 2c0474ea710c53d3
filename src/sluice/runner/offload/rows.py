"""Offloaded chunks among the rows of a step: they are computed apart, and sampled and scored with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from sluice.runner.inputs import HostBatch, Ints
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.offload.offloader import OffloadFailed, SliceDone
from sluice.types import BatchPlan, Chunk, ChunkSlice, RowError


class SliceRunner(Protocol):
    """Runs parts of offloaded chunks: a `Streamer`."""

    def open_slots(self, slots: Sequence[int]) -> None:
        """The slots are other requests' now."""
        ...

    def run(self, part: ChunkSlice, *, alone: bool) -> SliceDone:
        """See `Streamer.run`."""
        ...

    @property
    def ring_bytes(self) -> int:
        """That the ring takes."""
        ...

    def close(self) -> None:
        """Load no more. Twice is once."""
        ...

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        """Hidden states of NaN, in the place of those of a chunk that failed."""
        ...

    @property
    def totals(self) -> LoadTotals:
        """What passed through the ring so far."""
        ...


class NoOffload:
    """Every context fits the device."""

    ring_bytes = 0

    def close(self) -> None:
        pass

    def open_slots(self, slots: Sequence[int]) -> None:
        pass

    def run(self, part: ChunkSlice, *, alone: bool) -> SliceDone:
        raise OffloadFailed("there is no ring")

    def failed(self, part: ChunkSlice) -> torch.Tensor:
        raise OffloadFailed("there is no ring")

    @property
    def totals(self) -> LoadTotals:
        """See `Streams.totals`."""
        return LoadTotals()


@dataclass(frozen=True, slots=True)
class OffloadedWork:
    """What a plan says of offloaded chunks."""

    opened: tuple[int, ...]
    """Slots that change hands."""
    slices: tuple[ChunkSlice, ...]

    @property
    def done(self) -> list[Chunk]:
        """The chunks that are completed."""
        return [part.chunk for part in self.slices if part.completes]


def ordinary(plan: BatchPlan) -> BatchPlan:
    """The plan without the chunks that parts complete, which are its last ones."""
    count = sum(part.completes for part in plan.slices)
    return replace(plan, chunks=plan.chunks[:-count]) if count else plan


def with_offloaded(host: HostBatch, work: OffloadedWork) -> HostBatch:
    """The rows of a step with those that are offloaded behind them, as far as sampling and scoring go."""
    if not work.done:
        return host
    rows = list(enumerate(work.done, start=len(host.row_slots)))
    samples = [(row, chunk) for row, chunk in rows if chunk.samples]
    return replace(
        host,
        row_slots=_more(host.row_slots, [chunk.slot for chunk in work.done]),
        sample_rows=_more(host.sample_rows, [row for row, _ in samples]),
        sample_slots=_more(host.sample_slots, [chunk.slot for _, chunk in samples]),
        sample_positions=_more(host.sample_positions, [chunk.end for _, chunk in samples]),
        target_ids=_more(host.target_ids, [token for chunk in work.done for token in chunk.targets]),
        target_rows=(*host.target_rows, *((row, len(chunk.targets)) for row, chunk in rows if chunk.targets)),
    )


class SlicesDone(NamedTuple):
    """What came of the parts of a step."""

    hidden: torch.Tensor | None
    """[S + T, hidden_size] of all rows of the step, all samples first; None if there are none."""
    errors: tuple[RowError, ...]
    """What failed, by index of the part."""
    unfinished: int
    """Units that are not done."""


def run_slices(offload: SliceRunner, work: OffloadedWork, hidden: torch.Tensor | None, num_samples: int) -> SlicesDone:
    """Do the parts of a step.

    Args:
        hidden: [S + T, hidden_size] of the other rows, their samples first; None if there are none.
        num_samples: S.
    """
    errors: list[RowError] = []
    unfinished = 0
    samples, targets = [], []
    if hidden is not None:
        samples.append(hidden[:num_samples])
        targets.append(hidden[num_samples:])
    for index, part in enumerate(work.slices):
        try:
            of_part, unfinished = offload.run(part, alone=hidden is None)
        except OffloadFailed as error:
            errors.append(RowError(index, str(error)))
            of_part = offload.failed(part) if part.completes else None
        if of_part is not None:
            samples.append(of_part[: part.chunk.samples])
            targets.append(of_part[part.chunk.samples :])
    return SlicesDone(torch.cat((*samples, *targets)) if samples else None, tuple(errors), unfinished)


def _more(values: Ints, others: Sequence[int]) -> Ints:
    return np.concatenate((values, np.array(others, dtype=np.int64)))
