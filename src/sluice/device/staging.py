"""How what the host lays out for a step reaches the device.

    host buffer  --one copy, on the inputs' stream-->  device buffer  --compute reads views of it-->
       |                                                  |
       written again once the copy is done (the host      written again once the step that reads it is done
       waits, if ever, for the step `places` before)      (the inputs' stream waits, the host does not)

A place is such a pair of buffers. There are as many as steps in flight, so that a step can be laid out while others
run. Every array of a step lies in one buffer: a copy costs more than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sluice.device.streams import DoneEvent, Event, HostBuffers, Streams
from sluice.device.waiting import noop, wait_until

Array = npt.NDArray[Any]
ALIGNMENT = 16
"""Bytes at which each array begins."""
FIRST_BYTES = 1 << 16
"""Size of a place before a step asked for more."""
POISON_BYTE = 0xFF
"""What a buffer holds that nobody may read: as an integer it is -1, as a float NaN."""


class Arrived(Protocol):
    """A step's arrays on the device; read by work on the compute stream only."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The arrays, in their order and dtypes."""
        ...

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        """Copy the first `count` arrays into a buffer [bytes] uint8 on the device, where `lay_out` puts them."""
        ...

    def done(self) -> None:
        """All that reads them is queued."""
        ...


class Staging(Protocol):
    """Brings arrays to the device."""

    def stage(self, arrays: Sequence[Array]) -> Arrived:
        """Start bringing the arrays, each of one dimension, so that what compute is given from now on finds them."""
        ...


class Shared:
    """Arrays that are on the device already, as it is the host."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.tensors = tuple(map(torch.from_numpy, arrays))
        self._arrays = arrays

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        """See `Arrived.copy_to`."""
        arrays = self._arrays[:count]
        for place, tensor in zip(views(buffer, arrays, lay_out(arrays)), self.tensors, strict=False):
            place.copy_(tensor)

    def done(self) -> None:
        """See `Arrived.done`."""


class SharedStaging:
    """For a CPU: nothing travels. The arrays are the step's own and nobody writes to them."""

    def stage(self, arrays: Sequence[Array]) -> Shared:
        """See `Staging.stage`."""
        return Shared(arrays)


class Extent(NamedTuple):
    """Where an array lies in a buffer, in bytes."""

    begin: int
    end: int


def lay_out(arrays: Sequence[Array]) -> tuple[Extent, ...]:
    """Where each array goes: one after the other, aligned. It depends on their sizes only."""
    extents, begin = [], 0
    for array in arrays:
        extents.append(Extent(begin, begin + array.nbytes))
        begin = -(-(begin + array.nbytes) // ALIGNMENT) * ALIGNMENT
    return tuple(extents)


def views(buffer: torch.Tensor, arrays: Sequence[Array], extents: Sequence[Extent]) -> tuple[torch.Tensor, ...]:
    """The arrays' places in a buffer [bytes] uint8, as tensors of their dtypes."""
    dtypes = (torch.from_numpy(array[:0]).dtype for array in arrays)
    return tuple(buffer[extent.begin : extent.end].view(dtype) for extent, dtype in zip(extents, dtypes, strict=True))


class Status:
    """A pair of buffers and what may still be going on in them."""

    def __init__(self, host: torch.Tensor, device: torch.Tensor) -> None:
        self.host = host
        self.device = device
        self.copied: Event = DoneEvent()
        """The copy out of the host's buffer is done."""
        self.read: Event = DoneEvent()
        """The step that reads the device's buffer is done."""


class StagedArrays:
    """Arrays on their way in a place."""

    def __init__(self, place: Status, tensors: tuple[torch.Tensor, ...], extents: Sequence[Extent], ring: Ring) -> None:
        self.tensors = tensors
        self._place = place
        self._extents = extents
        self._ring = ring

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        """See `Arrived.copy_to`; one copy, as they lie side by side."""
        end = self._extents[count - 1].end
        buffer[:end].copy_(self._place.device[:end])

    def done(self) -> None:
        """See `Arrived.done`."""
        self._ring.done(self._place)


class Ring:
    """The places of a runner, used in turn.

    Args:
        streams: `inputs` copies, `compute` reads.
        device: where the steps run.
        host_buffer: makes the host's side.
        places: steps that can be laid out before the first of them is done; more wait for it.
        poison: overwrite what a step has read, so that whoever reads it later notices.
        tick: called every second while a place is waited for.
    """

    def __init__(
        self,
        streams: Streams,
        device: torch.device,
        host_buffer: HostBuffers,
        places: int,
        *,
        poison: bool = False,
        tick: Callable[[], None] = noop,
    ) -> None:
        self._streams = streams
        self._device = device
        self._host_buffer = host_buffer
        self._poison = poison
        self._tick = tick
        self._places = [self._new_place(FIRST_BYTES) for _ in range(places)]
        self._outgrown: list[Status] = []
        self._next = 0

    def stage(self, arrays: Sequence[Array]) -> StagedArrays:
        """See `Staging.stage`."""
        extents = lay_out(arrays)
        place = self._take(extents[-1].end)
        host = place.host.numpy()
        for array, extent in zip(arrays, extents, strict=True):
            host[extent.begin : extent.end] = np.ascontiguousarray(array).view(np.uint8)
        inputs, compute = self._streams.inputs, self._streams.compute
        used = extents[-1].end
        inputs.wait(place.read)
        inputs.run(lambda: _copy(place.device[:used], place.host[:used]))
        place.copied = inputs.record()
        compute.wait(place.copied)
        return StagedArrays(place, views(place.device, arrays, extents), extents, self)

    def done(self, place: Status) -> None:
        """See `Arrived.done`."""
        if self._poison:
            self._streams.compute.run(lambda: _fill(place.device))
        place.read = self._streams.compute.record()

    def _take(self, count: int) -> Status:
        """The next place, with room for `count` bytes and its host buffer free to be written."""
        number, self._next = self._next, (self._next + 1) % len(self._places)
        place = self._places[number]
        if not place.copied.query():
            wait_until(place.copied.query, self._tick)
        if place.device.shape[0] < count:
            # The old one is kept: the device may not be done with it, and doubling bounds what all of them take.
            self._outgrown.append(place)
            place = self._places[number] = self._new_place(1 << (count - 1).bit_length())
        return place

    @torch.inference_mode(False)
    def _new_place(self, count: int) -> Status:
        device = torch.empty(count, dtype=torch.uint8, device=self._device)
        return Status(self._host_buffer((count,), torch.uint8), device)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _fill(buffer: torch.Tensor) -> None:
    buffer.fill_(POISON_BYTE)
