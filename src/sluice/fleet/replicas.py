"""Replicas: the way from an ingress to the replicas of one deployment."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from sluice.fleet.calls import Call
from sluice.fleet.choosing import Chooser, Told


class ReplicaLost(Exception):
    """A replica cannot go on with a request; the message says why."""


class Replicas(Protocol):
    """The way to the replicas."""

    def stream(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Send a request to the replica that its chooser chooses, and yield what comes back, in the form of `wire`.

        To close the generator aborts the request.

        Raises:
            ReplicaLost: the replica cannot go on.
        """
        ...

    async def ask(self, chooser: Chooser, *, flush: bool) -> Mapping[str, Told]:
        """Return what each replica that answers tells of itself, by key.

        Args:
            chooser: knows which may serve, and what it was told before.
            flush: let them forget what is cached and not in use, first.
        """
        ...
