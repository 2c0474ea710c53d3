"""A plan's copies between tiers, begun in plan order before its chunks.

    device -> host   on the device's compute stream, done with the step
    host -> device   the same
    device -> disk   copied to a buffer on that stream, written by the disk's thread
    host -> disk     copied to a buffer at once, written by the disk's thread
    disk -> device   read by the disk's thread, into a page that nobody uses before it is told of

On a CPU the disk's thread reads straight into the page; on cuda through a pinned buffer and a stream of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from sluice.device.pages import DevicePages
from sluice.device.streams import DoneEvent, Event, HostBuffers, Stream
from sluice.device.transport import Transport
from sluice.device.waiting import noop, wait_until
from sluice.runner.device_state import PlanError
from sluice.tiers.disk_ends import InPlace, Staged, Target, ThroughBuffer
from sluice.tiers.disk_tier import DiskTier, Erase, Load, Store
from sluice.tiers.host_tier import HostTier
from sluice.tiers.page_buffers import PageBuffers
from sluice.types import BatchPlan, CopyDone, PageCopy, Tier


class Ended(Protocol):
    """Copies that end with their step."""

    def wait(self) -> tuple[CopyDone, ...]:
        """How they ended."""
        ...


class Copies(Protocol):
    """Executes the copies of plans."""

    @property
    def host_bytes(self) -> int:
        """That the host tier takes."""
        ...

    @property
    def disk_bytes(self) -> int:
        """That the disk tier takes."""
        ...

    def check(self, plan: BatchPlan) -> None:
        """
        Raises:
            PlanError: a copy that cannot be made, by tier and page. None was begun.
        """
        ...

    def begin(self, plan: BatchPlan, transport: Transport) -> Ended:
        """Begin all copies of a checked plan. What follows on the compute stream comes after them."""
        ...

    def close(self) -> None:
        """Finish what is on its way to a disk. Twice is once."""
        ...


class NoTiers:
    """No memory but the device's."""

    host_bytes = disk_bytes = 0

    def check(self, plan: BatchPlan) -> None:
        """See `Copies.check`."""
        if plan.copies or plan.dropped:
            raise PlanError(f"plan of step {plan.step} cannot run: it has copies, and there is nothing to copy to")

    def begin(self, plan: BatchPlan, transport: Transport) -> Ended:
        """See `Copies.begin`."""
        return HostCopies()

    def close(self) -> None:
        """See `Copies.close`."""


@dataclass(slots=True)
class HostCopies:
    """Copies between device and host, on their way."""

    copies: list[PageCopy] = field(default_factory=list)
    on_device: list[torch.Tensor] = field(default_factory=list)
    """The checksum of each, an int64."""
    landed: torch.Tensor | None = None
    """[copies] int64 on the host"""
    arrived: Event = field(default_factory=DoneEvent)

    def wait(self) -> tuple[CopyDone, ...]:
        """See `Ended.wait`."""
        if not self.copies:
            return ()
        if not self.arrived.query():
            wait_until(self.arrived.query, noop)
        assert self.landed is not None, f"{self.copies} have not begun"
        return tuple(map(_ended, self.copies, self.landed.tolist()))


class TierCopies:
    """Copies between the device and what lies behind it.

    Args:
        pages: of the device.
        host: if there is a host tier.
        disk: if there is a disk tier.
        host_buffer: makes memory that the device can copy from and to.
        loading: brings pages from the disk's thread to the device; None: the thread reads straight into them, on a CPU.
    """

    def __init__(
        self,
        pages: DevicePages,
        host: HostTier | None,
        disk: DiskTier | None,
        host_buffer: HostBuffers,
        loading: Stream | None = None,
    ) -> None:
        self._pages = pages
        self._host = host
        self._disk = disk
        self._loading = loading
        self._buffers = PageBuffers(pages.num_parts, pages.part_bytes, host_buffer)
        self._sizes = {
            Tier.DEVICE: pages.num_pages,
            Tier.HOST: 0 if host is None else host.num_pages,
            Tier.DISK: 0 if disk is None else disk.num_pages,
        }

    def check(self, plan: BatchPlan) -> None:
        """See `Copies.check`."""
        for copy in plan.copies:
            self._check_page(plan, copy.source, copy.source_page)
            self._check_page(plan, copy.target, copy.target_page)
            goes_up = copy.target is Tier.DEVICE
            if copy.source is copy.target or (copy.source is Tier.DISK and not goes_up):
                raise PlanError(f"plan of step {plan.step} cannot run: a copy from {copy.source} to {copy.target}")
        for slot in plan.dropped:
            self._check_page(plan, Tier.DISK, slot)

    def _check_page(self, plan: BatchPlan, tier: Tier, page: int) -> None:
        if not 0 <= page < self._sizes[tier]:
            raise PlanError(f"plan of step {plan.step} cannot run: page {page} of {self._sizes[tier]} on {tier}")

    def begin(self, plan: BatchPlan, transport: Transport) -> Ended:
        """See `Copies.begin`."""
        compute, results = transport.streams.compute, transport.streams.results
        with_disk: list[Store | Load | Erase] = [Erase(slot) for slot in plan.dropped]
        with_host = HostCopies()
        for copy in plan.copies:
            if Tier.DISK in (copy.source, copy.target):
                with_disk.append(self._with_disk(copy, compute))
            else:
                self._with_host(copy, compute, with_host)
        if with_disk:
            assert self._disk is not None, f"not checked: {plan}"
            self._disk.submit(*with_disk)
        if with_host.copies:
            results.wait(compute.record())
            results.run(lambda: _land(with_host, transport))
            with_host.arrived = results.record()
        return with_host

    @property
    def host_bytes(self) -> int:
        """See `Copies.host_bytes`."""
        return 0 if self._host is None else self._host.nbytes

    @property
    def disk_bytes(self) -> int:
        """See `Copies.disk_bytes`."""
        return 0 if self._disk is None else self._disk.nbytes

    def close(self) -> None:
        """See `Copies.close`."""
        if self._disk is not None:
            self._disk.close()

    def _with_host(self, copy: PageCopy, compute: Stream, into: HostCopies) -> None:
        host = self._host
        assert host is not None, f"not checked: {copy}"
        into.copies.append(copy)
        if copy.target is Tier.HOST:
            compute.run(lambda: into.on_device.append(host.store(copy.source_page, copy.target_page)))
            host.stored(copy.target_page, compute.record())
        else:
            compute.run(lambda: into.on_device.append(host.load(copy.source_page, copy.target_page)))

    def _with_disk(self, copy: PageCopy, compute: Stream) -> Store | Load:
        if copy.target is Tier.DEVICE:
            return Load(copy.ticket, copy.source_page, copy.checksum, self._target(copy.target_page, compute))
        buffer = self._buffers.take()
        arrived: Event = DoneEvent()
        if copy.source is Tier.HOST:
            assert self._host is not None, f"not checked: {copy}"
            self._host.read(copy.source_page, buffer)
        else:
            compute.run(lambda: self._pages.copy_out(copy.source_page, buffer))
            arrived = compute.record()
        return Store(copy.ticket, copy.target_page, copy.key, Staged(buffer, self._buffers, arrived))

    def _target(self, page: int, compute: Stream) -> Target:
        if self._loading is None:
            return InPlace(self._pages, page)
        return ThroughBuffer(self._pages, page, self._buffers, self._loading, compute.record())


def _ended(copy: PageCopy, checksum: int) -> CopyDone:
    if copy.target is Tier.HOST or checksum == copy.checksum:
        return CopyDone(copy.ticket, checksum)
    problem = f"host page {copy.source_page} holds a page of checksum {checksum:x}, not {copy.checksum:x}"
    return CopyDone(copy.ticket, 0, problem)


def _land(copies: HostCopies, transport: Transport) -> None:
    copies.landed = transport.land(torch.stack(copies.on_device))
