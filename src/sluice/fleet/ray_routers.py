"""The routers of Ray Serve: ours, which asks the chooser of a call, and Ray's prefix-affinity router beside it.

Ray makes them in the process of an ingress, from the names of these classes. They need the extra `ray`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from sluice.fleet.calls import ReplicaCall, ReplicaTarget
from sluice.fleet.identity import Identity
from sluice.fleet.replica_router import ReplicaCandidate

try:
    from ray.serve.llm.request_router import PrefixCacheAffinityRouter
except ImportError:  # its package asks for more than it needs
    from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter


class FleetRouter(RequestRouter):
    """Sends each call to the replica that its chooser chooses."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        return chosen(candidate_replicas, pending_request)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        note_sent(pending_request, replica_id)


class AffinityRouter(PrefixCacheAffinityRouter):
    """Ray's router, among the replicas that have the model."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        call = asked(pending_request)
        if not isinstance(call, ReplicaCall):
            return chosen(candidate_replicas, pending_request)
        replicas = by_key(candidate_replicas)
        admitted = [replicas[key] for key in call.chooser.admit_for(call.attempt, candidates_of(replicas))]
        if not admitted:
            return [candidate_replicas]
        ranks = await super().choose_replicas(admitted, pending_request)
        kept = [[each for each in rank if each in admitted] for rank in ranks]
        return [rank for rank in kept if rank] or [admitted]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        if note_sent(pending_request, replica_id):  # nothing else has a prompt
            super().on_request_routed(pending_request, replica_id, result)


def chosen(candidates: list[RunningReplica], pending: PendingRequest | None) -> list[list[RunningReplica]]:
    """Return the replica that a call or a question goes to. If none may serve it, any one refuses it."""
    replicas = by_key(candidates)
    match asked(pending):
        case ReplicaCall() as call:
            key = call.chooser.choose(call.attempt, call, candidates_of(replicas))
        case ReplicaTarget() as target:
            key = target.choose(candidates_of(replicas))
        case _:
            key = None
    return [candidates] if key is None else [[replicas[key]]]


def note_sent(pending: PendingRequest, replica_id: ReplicaID) -> bool:
    """Tell the chooser of a call that a replica has taken it. Return whether it is a call."""
    call = asked(pending)
    if not isinstance(call, ReplicaCall):
        return False
    call.chooser.sent(call.attempt, replica_id.unique_id)
    return True


def asked(pending: PendingRequest | None) -> object:
    """Return the first argument of a request."""
    return pending.args[0] if pending is not None and pending.args else None


def by_key(replicas: Iterable[RunningReplica]) -> dict[str, RunningReplica]:
    return {each.replica_id.unique_id: each for each in replicas}


def candidates_of(replicas: Mapping[str, RunningReplica]) -> list[ReplicaCandidate]:
    """Return what replicas have said of themselves when they became ready (`Replica.record_replica_metadata`)."""
    return [
        ReplicaCandidate(key, Identity(said["model"], said["fingerprint"], said["wire"]), said["version"])
        for key, said in ((key, each.replica_metadata) for key, each in replicas.items())
    ]
