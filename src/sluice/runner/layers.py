"""LayerSlices: resident chunks that are computed over several steps, some layers in each.

Between two layers nothing of a chunk is needed but its hidden states, so a walk through the model waits there while
steps of other requests are computed. Its keys and values are written layer by layer to pages that only its own request
holds, and that the scheduler publishes when the chunk is complete.

In a pipeline the parts of a chunk follow each other through the stages (`LayerItems`). Each stage walks with one part
at a time through its own layers. With the last of them it sends the part's hidden states, which the next stage receives
in the same step, behind its own layers: so both have the same order of what is sent between them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.parallel.layout import Place
from sluice.runner.device_state import DeviceState
from sluice.types import BatchPlan, Chunk, ChunkSlice
from sluice.types.layer_items import LayerItems

Walk = Generator[None, None, tuple[torch.Tensor, list[torch.Tensor]]]
"""A forward that pauses before each layer; returns hidden states [R, hidden_size], and nothing that is used here."""
NewWalk = Callable[[ForwardBatch, Sequence[PagedKV], Attention], Walk]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline, as one of them sees itself and the others."""

    place: Place
    num_layers: int
    """Of the whole model."""

    def layers(self, stage: int) -> int:
        """Return how many layers a stage has."""
        return len(self.place.layout.stages(self.num_layers)[stage])


@dataclass(slots=True)
class _Part:
    """Consecutive tokens of a chunk, and the walk that computes them."""

    chunk: Chunk
    batch: ForwardBatch
    walk: Walk
    hidden: torch.Tensor | None = None
    """[R, hidden_size], when the walk has ended."""


@dataclass(slots=True)
class _HalfDone:
    """A chunk of which some layers were computed."""

    chunk: Chunk
    items: LayerItems
    parts: list[_Part]
    done: int = 0
    """Work items that were done, by all stages."""

    def part(self, number: int) -> _Part | None:
        """Return a part, if there is one of this number."""
        return self.parts[number] if 0 <= number < len(self.parts) else None


class LayerSlices:
    """Computes slices of resident chunks.

    Args:
        new_walk: begins a forward of the model, or of a stage's part of it.
        state: the device's.
        attention: what the layers call.
        stages: of the pipeline; None: there is none.
    """

    def __init__(
        self, new_walk: NewWalk, state: DeviceState, attention: Attention, stages: Stages | None = None
    ) -> None:
        self._new_walk = new_walk
        self._state = state
        self._attention = attention
        self._stages = stages
        self._half_done: dict[int, _HalfDone] = {}
        """Slot -> its chunk."""

    def drop(self, slots: Sequence[int]) -> None:
        """Drop what is half done for these slots, which will not be completed."""
        for slot in slots:
            self._half_done.pop(slot, None)

    def problem_of(self, part: ChunkSlice) -> str | None:
        """Return why a slice cannot be run."""
        items = self._items(part.total)
        if not 0 < items.parts <= part.chunk.length or items.total != part.total:
            return f"{part.total} work items of a chunk of {part.chunk.length} tokens, in rounds of {items.of_round}"
        if part.stop > items.end_of_round(part.first):
            return f"it has work items {part.first} to {part.stop} of several rounds, each of {items.of_round}"
        return None

    def run(self, part: ChunkSlice) -> torch.Tensor | None:
        """Compute the layers of a slice, as far as this stage has them.

        Returns:
            [R, hidden_size], as of `Offloader.run`; None if the slice does not complete its chunk, or another stage
            does.

        Raises:
            ValueError: the slice does not follow on what was computed.
        """
        slot = part.chunk.slot
        half_done = self._half_done.pop(slot, None)
        if part.first == 0:
            half_done = self._begin(part)
        elif half_done is None or half_done.chunk != part.chunk or half_done.done != part.first:
            raise ValueError(f"layers {part.first} to {part.stop} of {part.chunk} follow on {half_done}")
        assert half_done is not None
        self._compute(half_done, part)
        half_done.done = part.stop
        if not part.completes:
            self._half_done[slot] = half_done
            return None
        return _joined(half_done.parts) if self._stages is None or self._stages.place.is_last else None

    def _compute(self, half_done: _HalfDone, part: ChunkSlice) -> None:
        """Compute this stage's layers of a slice, then receive what the stage before has computed."""
        number, first = divmod(part.first, half_done.items.of_round)
        stop, stages = first + part.stop - part.first, self._stages
        stage, layers = (0, stop) if stages is None else (stages.place.stage, stages.layers(stages.place.stage))
        own = half_done.part(number - stage)
        if own is not None and first < layers:
            if stage == first == 0:
                next(own.walk)
            self._attention.plan(own.batch)
            for _ in range(first, min(stop, layers)):
                own.hidden = _advanced(own.walk)
        coming = None if stages is None or stage == 0 else half_done.part(number - stage + 1)
        if coming is not None and stages is not None and first < stages.layers(stage - 1) <= stop:
            next(coming.walk)

    def _begin(self, part: ChunkSlice) -> _HalfDone:
        state, items = self._state, self._items(part.total)
        parts = []
        for chunk in _parts_of(part.chunk, items.parts):
            host = state.laid_out(BatchPlan(0, (), (chunk,)))
            batch = state.forward_batch(host, [_on_device(each, state.shape.device) for each in host.arrays])
            parts.append(_Part(chunk, batch, self._new_walk(batch, state.kv, self._attention)))
        return _HalfDone(part.chunk, items, parts)

    def _items(self, total: int) -> LayerItems:
        """Return the work items of a chunk that has so many."""
        if self._stages is None:
            return LayerItems(1, 1, total)
        return LayerItems.of_slice(self._stages.num_layers, self._stages.place.layout.pipeline_size, total)


def _parts_of(chunk: Chunk, count: int) -> Iterator[Chunk]:
    """Yield a chunk in so many parts, the last of which samples or embeds."""
    if count == 1:
        yield chunk
        return
    for number in range(count):
        start, stop = chunk.length * number // count, chunk.length * (number + 1) // count
        is_last = number == count - 1
        yield chunk._replace(
            start=chunk.start + start,
            length=stop - start,
            token_ids=chunk.token_ids[start:stop],
            new_pages=(),
            samples=chunk.samples and is_last,
            targets=chunk.targets[start:stop],
            embeds=chunk.embeds and is_last,
            new_window_pages=(),
        )


def _joined(parts: Sequence[_Part]) -> torch.Tensor:
    """Return the hidden states [R, hidden_size] of all parts of a chunk.

    Raises:
        ValueError: a walk goes on.
    """
    found = []
    for part in parts:
        if part.hidden is None:
            raise ValueError(f"the walk of {part.chunk} has other layers than were planned")
        found.append(part.hidden.split((part.chunk.num_samples, int(part.chunk.embeds), len(part.chunk.targets))))
    return torch.cat([rows for kind in zip(*found, strict=True) for rows in kind])


def _advanced(walk: Walk) -> torch.Tensor | None:
    """Compute the next layer of a walk. Return what the walk returns behind its last one."""
    try:
        next(walk)
    except StopIteration as ended:
        hidden: torch.Tensor = ended.value[0]
        return hidden
    return None


def _on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device. The host does not wait for it, and so not for the step before."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
