"""Simulated copies between tiers: those with the host end with their step, those with the disk when it has got so far.

The contents of pages are not simulated, so no copy fails.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from sluice.engine.messages import BlocksLoaded, Copied
from sluice.scheduler.setup import SchedulerSetup
from sluice.sim.world import CopyRates
from sluice.types import BatchPlan, ChunkSlice, CopyDone, Tier

READ_REPORTS = 4
"""Times that the blocks of an offloaded chunk are reported as loaded, each time an equal part of them."""

Post = Callable[[float, Copied | BlocksLoaded], None]
"""Takes a message, and the moment at which it is to reach the engine."""


class SimulatedCopies:
    """A disk that does one thing after the other, and a host that is never late.

    Args:
        load_of: returns the load that a copy with the disk belongs to, by its ticket: each load is reported when it is
            over. None: the copies of a plan are reported together.
    """

    def __init__(
        self, setup: SchedulerSetup, rates: CopyRates, post: Post, load_of: Callable[[int], object] | None = None
    ) -> None:
        self._setup = setup
        self._rates = rates
        self._post = post
        self._load_of = load_of or (lambda ticket: None)
        self._disk_free_at = 0.0

    def begin(self, plan: BatchPlan, now: float) -> tuple[CopyDone, ...]:
        """Begin what a step that is launched now copies and reads ahead. Returns the copies that end with the step."""
        with_disk = (copy.ticket for copy in plan.copies if Tier.DISK in (copy.source, copy.target))
        for _, tickets in groupby(with_disk, self._load_of):
            done = tuple(map(CopyDone, tickets))
            self._post(self._done_at(now, len(done) * self._setup.page_size), Copied(done))
        for piece in plan.slices:
            if not piece.stop and not piece.is_resident:
                self._read_ahead(plan.step, piece, now)
        return tuple(CopyDone(copy.ticket) for copy in plan.copies if Tier.DISK not in (copy.source, copy.target))

    def _done_at(self, now: float, tokens: float) -> float:
        """Return when the disk has copied the KV of so many tokens, which it is asked for now."""
        begins_at = max(now + self._rates.latency, self._disk_free_at)
        self._disk_free_at = begins_at + tokens * self._rates.token
        return self._disk_free_at

    def _read_ahead(self, step: int, piece: ChunkSlice, now: float) -> None:
        """Read the blocks of a chunk that a step begins."""
        limits = self._setup.offload
        assert limits is not None, "slices without limits of offloading"
        groups = piece.total // limits.num_layers - 1
        tokens = groups * limits.keys_of_group(self._setup.page_size, is_decode=piece.is_decode)
        for part in range(1, READ_REPORTS + 1):
            ready = -(-piece.total * part // READ_REPORTS)
            self._post(self._done_at(now, tokens / READ_REPORTS), BlocksLoaded(step, ready))
