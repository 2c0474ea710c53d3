"""SchedulerSetup: all that a scheduler is built from."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.kv.events import NO_EVENTS, NoEvents
from sluice.kv.manager import KVManager
from sluice.scheduler.drafting.measured_drafter import drafter_of
from sluice.scheduler.pacer import Pacing
from sluice.scheduler.scheduler import Scheduler
from sluice.types import DraftLimits, OffloadLimits, SchedulerLimits, TierLimits, WindowLimits


@dataclass(frozen=True, slots=True)
class SchedulerSetup:
    """All that a scheduler is built from. Schedulers with equal setups plan alike, so a trace can be replayed."""

    limits: SchedulerLimits
    num_pages: int
    page_size: int
    """Tokens of a page."""
    prefix_caching: bool = True
    tiers: TierLimits = field(default_factory=TierLimits)
    """Sizes of the tiers. Without prefix caching they hold offloaded requests alone."""
    offload: OffloadLimits | None = None
    """How contexts longer than the device are held. None: they are refused."""
    pacing: Pacing | None = None
    """What is known of the machine's speed. Used with an ITL target."""
    drafting: DraftLimits | None = None
    """What guesses tokens ahead. None: nothing does."""
    windows: WindowLimits | None = None
    """The pages of layers with a window. None: all layers have the same pages."""

    def build(self, events: NoEvents = NO_EVENTS) -> Scheduler:
        """Return a scheduler with an empty pool.

        Args:
            events: receives what the prefix cache stores and gives up; no plan depends on it.

        Raises:
            ValueError: no pages, or pages of no tokens.
        """
        kv = KVManager(
            num_pages=self.num_pages,
            page_size=self.page_size,
            prefix_caching=self.prefix_caching,
            tiers=self.tiers,
            offload=self.offload,
            events=events,
            states=self.limits.states,
            windows=self.windows,
        )
        drafter = None if self.drafting is None else drafter_of(self.drafting, self.limits.num_draft_tokens)
        return Scheduler(self.limits, kv, pacing=self.pacing, drafter=drafter)
