"""Everything a scheduler is built from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.kv.manager import KVManager
from sluice.scheduler.scheduler import Scheduler
from sluice.types import OffloadLimits, SchedulerLimits, TierLimits


@dataclass(frozen=True, slots=True)
class SchedulerSetup:
    """Two schedulers built from equal setups plan alike: that is what lets a trace be replayed."""

    limits: SchedulerLimits
    num_pages: int
    page_size: int
    """Tokens."""
    prefix_caching: bool = True
    tiers: TierLimits = field(default_factory=TierLimits)
    """Without prefix caching they hold nothing but offloaded requests."""
    offload: OffloadLimits | None = None
    """None: contexts longer than the device are refused."""

    def build(self) -> Scheduler:
        """A scheduler with an empty pool.

        Raises:
            ValueError: no pages, or pages of no tokens.
        """
        kv = KVManager(
            num_pages=self.num_pages,
            page_size=self.page_size,
            prefix_caching=self.prefix_caching,
            tiers=self.tiers,
            offload=self.offload,
        )
        return Scheduler(self.limits, kv)
