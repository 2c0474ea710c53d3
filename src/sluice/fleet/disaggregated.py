"""Disaggregated prefill: prefill replicas compute prompts, and their pages then go to the replicas that decode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.fleet.calls import ReplicaCall
from sluice.fleet.replica_router import ReplicaRouter
from sluice.fleet.replicas import Replicas
from sluice.routing.split import PrefillSplit, SplitLimits
from sluice.types import FinishReason, Output, Submit


@dataclass(slots=True)
class DisaggregatedPrefill:
    """Prefill replicas, and which prompts go there."""

    replicas: Replicas
    chooser: ReplicaRouter
    limits: SplitLimits
    failed_handovers: int = 0
    """Prompts that were computed there, and whose pages could not be handed over."""

    def takes(self, call: ReplicaCall, now: float) -> bool:
        """Return whether a call to the replicas that decode goes to a prefill replica first.

        Args:
            now: seconds of the choosers' clock.
        """
        if call.request.embeds or call.request.output_ids:
            return False
        with self.chooser.locked() as prefill, call.chooser.locked() as decode:
            return bool(decode.loads) and PrefillSplit(prefill, decode, self.limits).is_apart(call, now)


def prefill_request(request: Submit) -> Submit:
    """Return a request for the first token of another one."""
    sampling = request.sampling
    return replace(request, sampling=replace(sampling, max_tokens=1, min_tokens=min(1, sampling.min_tokens)))


def needs_decode(request: Submit, first: Output) -> bool:
    """Return whether a request needs more tokens than the first one, which a prefill replica sampled."""
    return first.finish_reason is FinishReason.LENGTH and request.sampling.max_tokens != 1
