"""How the arrays of a step reach a device, and how its results come back.

    host buffer  --one copy, on the inputs queue-->  device buffer  --compute reads views of it-->
       |                                                |
       written again once the copy is done (the host    written again once the step that reads it is done
       waits, if ever, for a step long before)          (the inputs queue waits, the host does not)

There are as many such pairs of buffers as steps in flight, so that a step can be laid out while others run. All arrays
of a step are in one buffer: a copy costs more than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from sluice.device.queues import (
    DeviceQueues,
    DoneEvent,
    Event,
    HostBuffers,
    cuda_queues,
    inline_queues,
    noop,
    pinned_host_buffer,
    wait_until,
)

Array = npt.NDArray[Any]
ToHost = Callable[[torch.Tensor], torch.Tensor]
"""Copies a tensor on the device to the host; called by work on the results queue."""
ALIGNMENT = 16
"""Bytes at which each array begins."""
FIRST_BYTES = 1 << 16
"""Size of a buffer before a step needed more."""
POISON_BYTE = 0xFF
"""Content of a buffer that no step may read: -1 as an integer, NaN as a float."""


class Arrived(Protocol):
    """The arrays of a step on the device. Only work on the compute queue reads them."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The arrays, in their order and dtypes."""
        ...

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        """Copy the first `count` arrays into a buffer [bytes] uint8 on the device, where `lay_out` puts them."""
        ...

    def done(self) -> None:
        """Report that all work that reads them is queued."""
        ...


class Staging(Protocol):
    """Brings arrays to the device."""

    def stage(self, arrays: Sequence[Array]) -> Arrived:
        """Start to bring arrays of one dimension to the device: work queued on compute from now on finds them."""
        ...


@dataclass(frozen=True, slots=True)
class Transport:
    """What a runner sends work through."""

    queues: DeviceQueues
    staging: Staging
    to_host: ToHost


def cpu_transport() -> Transport:
    """Return the transport of a CPU, where nothing has to travel."""
    return Transport(inline_queues(), SharedStaging(), lambda tensor: tensor)


def staged_transport(
    queues: DeviceQueues,
    device: torch.device,
    host_buffer: HostBuffers,
    num_buffers: int,
    *,
    poison: bool = False,
    tick: Callable[[], None] = noop,
) -> Transport:
    """Return the transport of a device with memory of its own; the arguments are those of `StagingRing`."""

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        return host_buffer(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True)

    ring = StagingRing(queues, device, host_buffer, num_buffers, poison=poison, tick=tick)
    return Transport(queues, ring, to_host)


def transport_for(
    device: torch.device, num_buffers: int, *, poison: bool = False, tick: Callable[[], None] = noop
) -> Transport:
    """Return the transport of a device. Waits for what the default stream of a CUDA device was given."""
    if device.type == "cpu":
        return cpu_transport()
    return staged_transport(cuda_queues(device), device, pinned_host_buffer, num_buffers, poison=poison, tick=tick)


class SharedArrays:
    """Arrays that need not travel, as the device is the host."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.tensors = tuple(map(torch.from_numpy, arrays))
        self._arrays = arrays

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        arrays = self._arrays[:count]
        for view, tensor in zip(views(buffer, arrays, lay_out(arrays)), self.tensors, strict=False):
            view.copy_(tensor)

    def done(self) -> None:
        """Return: the work was done when it was queued."""


class SharedStaging:
    """The staging of a CPU. The arrays belong to the step, and no other code writes to them."""

    def stage(self, arrays: Sequence[Array]) -> SharedArrays:
        return SharedArrays(arrays)


class Extent(NamedTuple):
    """Where an array is in a buffer, in bytes."""

    begin: int
    end: int


def lay_out(arrays: Sequence[Array]) -> tuple[Extent, ...]:
    """Return where each array goes: one after the other, aligned. It depends on their sizes only."""
    extents, begin = [], 0
    for array in arrays:
        extents.append(Extent(begin, begin + array.nbytes))
        begin = -(-(begin + array.nbytes) // ALIGNMENT) * ALIGNMENT
    return tuple(extents)


def views(buffer: torch.Tensor, arrays: Sequence[Array], extents: Sequence[Extent]) -> tuple[torch.Tensor, ...]:
    """Return the parts of a buffer [bytes] uint8 that hold the arrays, as tensors of their dtypes."""
    dtypes = (torch.from_numpy(array[:0]).dtype for array in arrays)
    return tuple(buffer[extent.begin : extent.end].view(dtype) for extent, dtype in zip(extents, dtypes, strict=True))


class BufferPair:
    """A buffer on the host and one on the device, with the work that may still use them."""

    def __init__(self, host: torch.Tensor, device: torch.Tensor) -> None:
        self.host = host
        self.device = device
        self.copied: Event = DoneEvent()
        """The copy out of the host's buffer is done."""
        self.read: Event = DoneEvent()
        """The step that reads the device's buffer is done."""


class StagedArrays:
    """Arrays that travel through a pair of buffers."""

    def __init__(
        self, pair: BufferPair, tensors: tuple[torch.Tensor, ...], extents: Sequence[Extent], ring: StagingRing
    ) -> None:
        self.tensors = tensors
        self._pair = pair
        self._extents = extents
        self._ring = ring

    def copy_to(self, buffer: torch.Tensor, count: int) -> None:
        """Make one copy, as the arrays are side by side."""
        end = self._extents[count - 1].end
        buffer[:end].copy_(self._pair.device[:end])

    def done(self) -> None:
        self._ring.done(self._pair)


class StagingRing:
    """Pairs of buffers, used in turn.

    Args:
        queues: `inputs` copies, `compute` reads.
        device: where the steps run.
        host_buffer: makes the host's side.
        num_buffers: steps that can be laid out before the first of them is done; the next one waits for it.
        poison: overwrite what a step has read, so that a later read of it is noticed.
        tick: called every second while the host waits for a buffer.
    """

    def __init__(
        self,
        queues: DeviceQueues,
        device: torch.device,
        host_buffer: HostBuffers,
        num_buffers: int,
        *,
        poison: bool = False,
        tick: Callable[[], None] = noop,
    ) -> None:
        self._queues = queues
        self._device = device
        self._host_buffer = host_buffer
        self._poison = poison
        self._tick = tick
        self._pairs = [self._new_pair(FIRST_BYTES) for _ in range(num_buffers)]
        self._outgrown: list[BufferPair] = []
        self._next = 0

    def stage(self, arrays: Sequence[Array]) -> StagedArrays:
        extents = lay_out(arrays)
        pair = self._take(extents[-1].end)
        host = pair.host.numpy()
        for array, extent in zip(arrays, extents, strict=True):
            host[extent.begin : extent.end] = np.ascontiguousarray(array).view(np.uint8)
        inputs, compute = self._queues.inputs, self._queues.compute
        used = extents[-1].end
        inputs.wait(pair.read)
        inputs.run(lambda: _copy(pair.device[:used], pair.host[:used]))
        pair.copied = inputs.record()
        compute.wait(pair.copied)
        return StagedArrays(pair, views(pair.device, arrays, extents), extents, self)

    def done(self, pair: BufferPair) -> None:
        """Report that all work that reads the device's buffer is queued."""
        if self._poison:
            self._queues.compute.run(lambda: _fill(pair.device))
        pair.read = self._queues.compute.record()

    def _take(self, count: int) -> BufferPair:
        """Return the next pair, with room for `count` bytes and its host buffer free to be written."""
        number, self._next = self._next, (self._next + 1) % len(self._pairs)
        pair = self._pairs[number]
        if not pair.copied.query():
            wait_until(pair.copied.query, self._tick)
        if pair.device.shape[0] < count:
            # The old one is kept: the device may not be done with it, and doubling bounds what all of them take.
            self._outgrown.append(pair)
            pair = self._pairs[number] = self._new_pair(1 << (count - 1).bit_length())
        return pair

    @torch.inference_mode(False)
    def _new_pair(self, count: int) -> BufferPair:
        device = torch.empty(count, dtype=torch.uint8, device=self._device)
        return BufferPair(self._host_buffer((count,), torch.uint8), device)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _fill(buffer: torch.Tensor) -> None:
    buffer.fill_(POISON_BYTE)
