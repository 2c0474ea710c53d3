"""Law 18: in a pipeline decodes take turns, so that no step is left without them."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.scheduler.drafting.draft_rows import ready_to_decode
from sluice.scheduler.passes import microbatches, token_is_there
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.testing.laws.pages import LawBroken
from sluice.types import BatchPlan, SchedulerLimits


class DecodeTurns:
    """18. Of the requests that decode, each step of a pipeline has its share, to within one. Those that waited longest
    go first; while the same requests decode and the steps stay as many, none that is ready waits for a round of them.

    Nothing is said of a step in which pages ran out, nor of steps under prefill-first, where decodes wait for prompts.
    """

    def __init__(self) -> None:
        self._planned_at: dict[int, int] = {}
        """Step in which a request last decoded, or in which its prompt ended."""
        self._waited: dict[int, int] = {}
        """Steps that passed over a request since then, when it was ready."""
        self._decoding: frozenset[int] = frozenset()
        self._ready: Sequence[Request] = ()
        self._round = 1
        """Steps among which decodes are divided."""
        self._is_full = False
        """So many are in flight, and streams wait for their tokens."""

    def before(self, state: SchedulerState, limits: SchedulerLimits) -> None:
        """Note who may decode in the step that is about to be planned."""
        decoding, steps = frozenset(state.decoding), microbatches(state, limits)
        if decoding != self._decoding or steps != self._round:
            self._waited.clear()
        self._round = steps
        self._is_full = not limits.lookahead and state.num_in_flight >= steps
        self._planned_at |= dict.fromkeys(decoding - self._decoding, state.step - 1)
        self._decoding = decoding
        ready = ready_to_decode(state, limits)
        self._ready = [each for each in ready if token_is_there(state, limits, each)]

    def check(self, state: SchedulerState, limits: SchedulerLimits, plan: BatchPlan) -> None:
        """Check the step that was planned."""
        if limits.pipeline_stages == 1 or (self._is_full and not plan.num_decodes):
            return
        planned = {chunk.request_id for chunk in plan.chunks[: plan.num_decodes]}
        passed = [request.id for request in self._ready if request.id not in planned]
        least = max(1, len(self._decoding) // self._round)
        most = max(1, -(-len(self._decoding) // self._round))
        if len(planned) > most:
            raise LawBroken(f"law 18: plan {plan.step} has {len(planned)} decodes, {most} are its share")
        if limits.schedule == "mixed" and passed and state.kv.available and not self._lost(state):
            if len(planned) < least:
                raise LawBroken(f"law 18: plan {plan.step} has {len(planned)} decodes of {least}, {passed} are ready")
            latest = max((self._planned_at[each] for each in planned), default=-1)
            earliest = min(self._planned_at[each] for each in passed)
            if latest > earliest:
                raise LawBroken(f"law 18: plan {plan.step} passes over {passed}, which waited longer than {planned}")
            for request_id in passed:
                self._waited[request_id] = self._waited.get(request_id, 0) + 1
                if self._waited[request_id] >= self._round:
                    raise LawBroken(f"law 18: request {request_id} waited for {self._waited[request_id]} steps")
        for request_id in planned:
            self._planned_at[request_id] = plan.step
            self._waited.pop(request_id, None)

    def _lost(self, state: SchedulerState) -> bool:
        """Return whether requests left while the step was planned."""
        return any(request_id not in state.decoding for request_id in self._decoding)
