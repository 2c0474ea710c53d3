"""Buffers between the device and a disk, kept for the next copy."""

from __future__ import annotations

import queue

import torch

from sluice.device.streams import HostBuffers
from sluice.tiers.split import split


class PageBuffers:
    """Buffers of one page each. Any thread may take and give.

    As many are made as are in use at once: whoever plans copies bounds how many that are.

    Args:
        host_buffer: makes them, so that the device can copy from and to them.
    """

    def __init__(self, num_parts: int, part_bytes: int, host_buffer: HostBuffers) -> None:
        self._shape = (num_parts, part_bytes)
        self._host_buffer = host_buffer
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def take(self) -> torch.Tensor:
        """[parts, part_bytes] uint8 of any content."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            with torch.inference_mode(False):
                return self._host_buffer(self._shape, torch.uint8)

    def give(self, buffer: torch.Tensor) -> None:
        """Nobody uses it any more."""
        self._free.put(buffer)


def views(buffer: torch.Tensor) -> list[memoryview]:
    """The parts of a buffer [parts, part_bytes] uint8 on the host, as memory."""
    return split(buffer.flatten().numpy().data, buffer.shape[1])
