"""What several laws look at, read from a state once for all of them."""

from __future__ import annotations

from sluice.kv.manager import KVManager, ResidentLease
from sluice.kv.nodes import Node
from sluice.kv.offload import OffloadLease
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState


class View:
    """A state with its nodes and its leases. It is valid until the state changes."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.nodes: list[Node] = list(state.kv.tree.nodes())
        self.live = live(state)
        """The requests that hold pages."""
        self.resident: list[tuple[Request, ResidentLease]] = []
        """The live requests whose context is on the device, and their leases."""
        self.offloaded: list[tuple[Request, OffloadLease]] = []
        """The live requests whose context is on a tier, and their leases."""
        for request in self.live:
            if isinstance(lease := request.lease, ResidentLease):
                self.resident.append((request, lease))
            elif isinstance(lease, OffloadLease):
                self.offloaded.append((request, lease))

    @property
    def kv(self) -> KVManager:
        return self.state.kv


def live(state: SchedulerState) -> list[Request]:
    """Return the requests that hold pages."""
    return [
        *state.loading.values(),
        *state.partial.values(),
        *state.decoding.values(),
        *state.forced.values(),
        *state.offloaded.values(),
        *state.draining.values(),
    ]
