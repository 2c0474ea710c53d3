"""LayerSlices: resident chunks that are computed over several steps, some layers in each.

Between two layers nothing of a chunk is needed but its hidden states, so a walk through the model waits there while
steps of other requests are computed. Its keys and values are written layer by layer to pages that only its own request
holds, and that the scheduler publishes when the chunk is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.runner.device_state import DeviceState
from sluice.types import BatchPlan, Chunk, ChunkSlice

Walk = Generator[None, None, tuple[torch.Tensor, list[torch.Tensor]]]
"""A forward that pauses behind each layer; returns hidden states [R, hidden_size], and nothing that is used here."""
NewWalk = Callable[[ForwardBatch, Sequence[PagedKV], Attention], Walk]


@dataclass(slots=True)
class _HalfDone:
    """A chunk of which some layers were computed."""

    chunk: Chunk
    batch: ForwardBatch
    walk: Walk
    layers: int = 0
    """Layers that were computed."""


class LayerSlices:
    """Computes slices of resident chunks.

    Args:
        new_walk: begins a forward of the model.
        state: the device's.
        attention: what the layers call.
    """

    def __init__(self, new_walk: NewWalk, state: DeviceState, attention: Attention) -> None:
        self._new_walk = new_walk
        self._state = state
        self._attention = attention
        self._half_done: dict[int, _HalfDone] = {}
        """Slot -> its chunk."""

    def open_slots(self, slots: Sequence[int]) -> None:
        """Drop what was half done for these slots: they belong to other requests now."""
        for slot in slots:
            self._half_done.pop(slot, None)

    def run(self, part: ChunkSlice) -> torch.Tensor | None:
        """Compute the layers of a slice.

        Returns:
            [R, hidden_size], as of `Offloader.run`; None if the slice does not complete its chunk.

        Raises:
            ValueError: the slice does not follow on what was computed.
        """
        slot = part.chunk.slot
        half_done = self._half_done.pop(slot, None)
        if part.first == 0:
            half_done = self._begin(part.chunk)
        elif half_done is None or half_done.chunk != part.chunk or half_done.layers != part.first:
            raise ValueError(f"layers {part.first} to {part.stop} of {part.chunk} follow on {half_done}")
        assert half_done is not None
        self._attention.plan(half_done.batch)
        for _ in range(part.first, part.stop):
            next(half_done.walk)
        half_done.layers = part.stop
        if not part.completes:
            self._half_done[slot] = half_done
            return None
        try:
            next(half_done.walk)
        except StopIteration as ended:
            hidden: torch.Tensor = ended.value[0]
            return hidden
        raise ValueError(f"the model has more than {part.total} layers")

    def _begin(self, chunk: Chunk) -> _HalfDone:
        state = self._state
        host = state.laid_out(BatchPlan(0, (), (chunk,)))
        batch = state.forward_batch(host, [_on_device(each, state.shape.device) for each in host.arrays])
        return _HalfDone(chunk, batch, self._new_walk(batch, state.kv, self._attention))


def _on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device. The host does not wait for it, and so not for the step before."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
