"""How steps reach a device and their results come back: streams, staging and landing, chosen together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sluice.device.staging import Ring, SharedStaging, Staging
from sluice.device.streams import HostBuffers, Streams, cuda_streams, inline_streams, pinned_host_buffer
from sluice.device.waiting import noop

Landing = Callable[[torch.Tensor], torch.Tensor]
"""A copy on the host of a tensor on the device, begun by work on the results' stream."""


@dataclass(frozen=True, slots=True)
class Transport:
    """What a runner sends work through."""

    streams: Streams
    staging: Staging
    land: Landing


def cpu_transport() -> Transport:
    """Everything is there already."""
    return Transport(inline_streams(), SharedStaging(), lambda tensor: tensor)


def staged_transport(
    streams: Streams,
    device: torch.device,
    host_buffer: HostBuffers,
    places: int,
    *,
    poison: bool = False,
    tick: Callable[[], None] = noop,
) -> Transport:
    """Everything travels.

    Args:
        streams: of the device.
        host_buffer: makes the host's side of copies.
        places: steps in flight at once; see `Ring`.
        poison: see `Ring`.
        tick: called every second while a place is waited for.
    """

    def land(tensor: torch.Tensor) -> torch.Tensor:
        return host_buffer(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True)

    return Transport(streams, Ring(streams, device, host_buffer, places, poison=poison, tick=tick), land)


def transport_for(
    device: torch.device, places: int, *, poison: bool = False, tick: Callable[[], None] = noop
) -> Transport:
    """That of a device. On a CUDA device it waits for what the default stream was given."""
    if device.type == "cpu":
        return cpu_transport()
    return staged_transport(cuda_streams(device), device, pinned_host_buffer, places, poison=poison, tick=tick)
