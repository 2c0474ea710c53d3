"""A plan's copies between tiers, begun in plan order before its chunks.

    device -> host   on the device's compute queue, done with the step
    host -> device   the same
    device -> disk   copied to a buffer on that queue, written by the disk's thread
    host -> disk     copied to a buffer at once, written by the disk's thread
    disk -> device   read by the disk's thread, into a page that no request uses before the copy is reported

On a CPU the disk's thread reads straight into the page, on a GPU through a pinned buffer and a queue of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from sluice.device.pages import DevicePages
from sluice.device.queues import DeviceQueue, DoneEvent, Event, HostBuffers, wait_until
from sluice.device.transport import Transport
from sluice.storage.disk_tier import (
    DiskRead,
    DiskTier,
    DiskWrite,
    Erase,
    FromBuffer,
    InPlace,
    PageBuffers,
    ReadTarget,
    ThroughBuffer,
)
from sluice.storage.host_tier import HostTier
from sluice.types import BatchPlan, BatchResult, CopyDone, PageCopy, PlanError, Tier


class Copies(Protocol):
    """Executes the copies of plans."""

    @property
    def host_bytes(self) -> int:
        """Bytes that the host tier takes."""
        ...

    @property
    def disk_bytes(self) -> int:
        """Bytes that the disk tier takes."""
        ...

    def check(self, plan: BatchPlan) -> None:
        """Refuse a plan with a copy that cannot be made, before any copy begins.

        Raises:
            PlanError: names the tier and the page.
        """
        ...

    def begin(self, plan: BatchPlan, transport: Transport) -> HostCopies:
        """Begin all copies of a checked plan. What follows on the compute queue runs after them."""
        ...

    def close(self) -> None:
        """Finish what is on its way to a disk. May be called again."""
        ...


class NoTiers:
    """The copies of an engine whose only memory is the device's: there are none."""

    host_bytes = disk_bytes = 0

    def check(self, plan: BatchPlan) -> None:
        if plan.copies or plan.dropped:
            raise PlanError(f"plan of step {plan.step} cannot run: it has copies, but there is no tier")

    def begin(self, plan: BatchPlan, transport: Transport) -> HostCopies:
        return HostCopies()

    def close(self) -> None:
        """Return: there is nothing to finish."""


@dataclass(slots=True)
class HostCopies:
    """The copies of a step between device and host, which end with it."""

    copies: list[PageCopy] = field(default_factory=list)
    on_device: list[torch.Tensor] = field(default_factory=list)
    """The checksum of each, an int64."""
    checksums: torch.Tensor | None = None
    """[copies] int64 on the host."""
    arrived: Event = field(default_factory=DoneEvent)
    """`checksums` is there."""
    is_part: bool = False
    """Other ranks copy the rest of each page: checksums are those of parts, and are compared once they are summed."""

    def wait(self) -> tuple[CopyDone, ...]:
        """Block until they have ended, and return how."""
        if not self.copies:
            return ()
        if not self.arrived.query():
            wait_until(self.arrived.query)
        assert self.checksums is not None, f"{self.copies} have not begun"
        checksums = self.checksums.tolist()
        if self.is_part:
            return tuple(CopyDone(copy.ticket, checksum) for copy, checksum in zip(self.copies, checksums, strict=True))
        return tuple(map(ended, self.copies, checksums))


class PageCopies:
    """Copies of pages between the device and the tiers behind it.

    Args:
        pages: of the device.
        host: the host tier, if there is one.
        disk: the disk tier, if there is one.
        host_buffer: makes memory that the device can copy from and to.
        loading: the queue that copies pages from the disk's buffers to the device; None on a CPU, where the disk's
            thread reads straight into the pages.
        is_part: other ranks copy the rest of each page.
    """

    def __init__(
        self,
        pages: DevicePages,
        host: HostTier | None,
        disk: DiskTier | None,
        host_buffer: HostBuffers,
        loading: DeviceQueue | None = None,
        *,
        is_part: bool = False,
    ) -> None:
        self._pages = pages
        self._host = host
        self._disk = disk
        self._loading = loading
        self._is_part = is_part
        self._buffers = PageBuffers(pages.num_parts, pages.part_bytes, host_buffer)
        self._sizes = {
            Tier.DEVICE: pages.num_pages,
            Tier.HOST: 0 if host is None else host.num_pages,
            Tier.DISK: 0 if disk is None else disk.num_pages,
        }

    def check(self, plan: BatchPlan) -> None:
        for copy in plan.copies:
            self._check_page(plan, copy.source, copy.source_page)
            self._check_page(plan, copy.target, copy.target_page)
            goes_up = copy.target is Tier.DEVICE
            if copy.source is copy.target or (copy.source is Tier.DISK and not goes_up):
                raise PlanError(f"plan of step {plan.step} cannot run: a copy from {copy.source} to {copy.target}")
        for page in plan.dropped:
            self._check_page(plan, Tier.DISK, page)

    def _check_page(self, plan: BatchPlan, tier: Tier, page: int) -> None:
        if not 0 <= page < self._sizes[tier]:
            raise PlanError(f"plan of step {plan.step} cannot run: page {page} of {self._sizes[tier]} on {tier}")

    def begin(self, plan: BatchPlan, transport: Transport) -> HostCopies:
        compute, results = transport.queues.compute, transport.queues.results
        with_disk: list[DiskWrite | DiskRead | Erase] = [Erase(page) for page in plan.dropped]
        with_host = HostCopies(is_part=self._is_part)
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
            results.run(lambda: _checksums_to_host(with_host, transport))
            with_host.arrived = results.record()
        return with_host

    @property
    def host_bytes(self) -> int:
        return 0 if self._host is None else self._host.nbytes

    @property
    def disk_bytes(self) -> int:
        return 0 if self._disk is None else self._disk.nbytes

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def _with_host(self, copy: PageCopy, compute: DeviceQueue, into: HostCopies) -> None:
        host = self._host
        assert host is not None, f"not checked: {copy}"
        into.copies.append(copy)
        if copy.target is Tier.HOST:
            compute.run(lambda: into.on_device.append(host.store(copy.source_page, copy.target_page)))
            host.stored(copy.target_page, compute.record())
        else:
            compute.run(lambda: into.on_device.append(host.load(copy.source_page, copy.target_page)))

    def _with_disk(self, copy: PageCopy, compute: DeviceQueue) -> DiskWrite | DiskRead:
        if copy.target is Tier.DEVICE:
            return DiskRead(copy.ticket, copy.source_page, copy.checksum, self._target(copy.target_page, compute))
        buffer = self._buffers.take()
        filled: Event = DoneEvent()
        if copy.source is Tier.HOST:
            assert self._host is not None, f"not checked: {copy}"
            self._host.read(copy.source_page, buffer)
        else:
            compute.run(lambda: self._pages.copy_out(copy.source_page, buffer))
            filled = compute.record()
        return DiskWrite(copy.ticket, copy.target_page, copy.key, FromBuffer(buffer, self._buffers, filled))

    def _target(self, page: int, compute: DeviceQueue) -> ReadTarget:
        if self._loading is None:
            return InPlace(self._pages, page)
        return ThroughBuffer(self._pages, page, self._buffers, self._loading, compute.record())


def ended(copy: PageCopy, checksum: int) -> CopyDone:
    """Return how a copy between device and host ended, by the checksum of what was copied."""
    if copy.target is Tier.HOST or checksum == copy.checksum:
        return CopyDone(copy.ticket, checksum)
    problem = f"host page {copy.source_page} holds a page of checksum {checksum:x}, not {copy.checksum:x}"
    return CopyDone(copy.ticket, 0, problem)


def _checksums_to_host(copies: HostCopies, transport: Transport) -> None:
    copies.checksums = transport.to_host(torch.stack(copies.on_device))


class Launched(Protocol):
    """A step on its way."""

    def wait(self) -> BatchResult:
        """Block until the step is done, and return its result."""
        ...


@dataclass(frozen=True, slots=True)
class CopiesOnly:
    """A launched step without chunks."""

    step: int

    def wait(self) -> BatchResult:
        return BatchResult(self.step, ())


@dataclass(frozen=True, slots=True)
class WithCopies:
    """A launched step whose plan has copies."""

    inner: Launched
    copies: HostCopies

    def wait(self) -> BatchResult:
        result = self.inner.wait()
        return replace(result, copies=self.copies.wait())


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A step that failed after its copies had begun. They end all the same, so it counts as launched."""

    error: Exception

    def wait(self) -> BatchResult:
        raise self.error
