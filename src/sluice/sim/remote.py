"""Remote pages: those of a prompt that another replica computed, as the scheduler of this one sees them.

They are nodes of its prefix tree that are on a tier behind the device, and a load brings them to the device: that load
is the transfer over the network. The tier is filled from here alone, nothing is stored there by the scheduler.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from sluice.config import ConfigError
from sluice.kv.flights import LoadedPage
from sluice.kv.manager import KVManager
from sluice.kv.nodes import Node
from sluice.kv.tiers import Tiers
from sluice.scheduler.setup import SchedulerSetup
from sluice.types import Tier, TierLimits

REMOTE = Tier.DISK
"""The tier whose copies take a time of their own."""


def with_remote_tier(setup: SchedulerSetup, num_pages: int) -> SchedulerSetup:
    """Return the setup of a scheduler that loads pages of other replicas, and has no other tier.

    Args:
        num_pages: of the tier.
    """
    most = setup.num_pages  # a prompt is one transfer
    tiers = TierLimits(disk_pages=num_pages, write_policy="never", copies_per_step=most, copies_in_flight=most)
    return replace(setup, tiers=tiers, offload=None)


def load_of(kv: KVManager) -> Callable[[int], object] | None:
    """Return what names the load of a copy by its ticket, since each load is a transfer; None if nothing is remote."""
    if not isinstance(kv.tiers, Tiers) or kv.tiers.limits.write_policy != "never":
        return None
    flights = kv.tiers.flights

    def load(ticket: int) -> object:
        flight = flights.tickets[ticket]
        assert isinstance(flight, LoadedPage), f"{flight} is no load"
        return flight.load

    return load


def keep_remote(kv: KVManager, prompt: array[int], extra_key: str) -> list[Node]:
    """Put the full pages of a prompt on the tier, as far as they are not there, and keep them there until `let_go`.

    Raises:
        ConfigError: the tier is full of pages of requests that have not ended.
    """
    size, tiers = kv.page_size, kv.tiers
    path: list[Node] = []
    for start in range(0, len(prompt) // size * size, size):
        key = prompt[start : start + size].tobytes()
        node = tiers.behind(path, key, extra_key, REMOTE)
        if node is not None:
            tiers.read([node], REMOTE)
        else:
            taken = tiers.take(REMOTE, 1)
            if taken is None:
                raise ConfigError(f"prompts of more than {tiers.pages_of(REMOTE)} pages wait at one decode replica")
            node = tiers.publish(path, key, extra_key, REMOTE, taken[0])
            assert node is not None, f"page {start // size} of a prompt is on the tier, and is not"
        path.append(node)
    return path


def let_go(kv: KVManager, path: Sequence[Node]) -> None:
    """Note that the request whose pages these are is over."""
    if path:
        kv.tiers.unread(path)
