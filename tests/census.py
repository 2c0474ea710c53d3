"""A lawful scheduler that counts what random lives meet: statuses, ends, and events in each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sluice.kv.flights import LoadedPage, NodeStore
from sluice.kv.manager import ResidentLease
from sluice.kv.nodes import Node
from sluice.kv.tiers import Tiers
from sluice.scheduler.queue_limits import QueueFull
from sluice.scheduler.request import Request, Status
from sluice.scheduler.scheduler import Scheduler
from sluice.testing.laws import Lawful
from sluice.types import BatchPlan, BatchResult, CopyDone, FinishReason, Output, Submit


class Observed(Lawful):
    """A lawful scheduler that counts what it meets.

    Args:
        met: name of an event -> how often it was met; counts are added to it.
    """

    def __init__(self, scheduler: Scheduler, met: Counter[str]) -> None:
        super().__init__(scheduler)
        self._met = met
        self._seen: set[tuple[int, Status]] = set()
        self._nodes: dict[Node, bool] = {}
        """Nodes of the tree, and whether they had a page of windows."""

    def add(self, submit: Submit) -> None:
        try:
            super().add(submit)
        except QueueFull:
            self._met["refused: the queue is full"] += 1
            raise

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        request = self.state.requests.get(request_id)
        status = Status.GONE if request is None else request.status
        self._met[f"abort while {status.value}{'' if request is None else self._progress(request)}"] += 1
        self._met["abort with drafts in flight"] += request is not None and request.drafts > 0
        self._met["abort in a sliced chunk"] += request is not None and request.sliced is not None
        return super().abort(request_id, reason)

    def schedule(self) -> BatchPlan | None:
        before = {request.id: (request.status, preemptions(request)) for request in self.state.requests.values()}
        drafting = {request.id for request in self.state.requests.values() if request.drafts}
        sliced = {request.id for request in self.state.requests.values() if request.sliced is not None}
        opening = self._opening()
        plan = super().schedule()
        self._met["opened over several steps"] += opening is not None
        self._met["given back over several steps"] += self.state.kv.can_offload and bool(self.state.kv.offload.closing)
        for request in self.state.requests.values():
            self._met["no room after some steps"] += request is opening and request.status is Status.WAITING
            status, count = before[request.id]
            if preemptions(request) > count:
                self._met[f"preempted while {status.value}"] += 1
                self._met["preempted with drafts in flight"] += request.id in drafting
                self._met["preempted in a sliced chunk"] += request.id in sliced
            if (request.id, request.status) not in self._seen:
                self._seen.add((request.id, request.status))
                self._met[request.status.value] += 1
        if plan is not None:
            self._met[f"bound by {plan.bound_by}"] += 1
            self._drafts_planned(plan)
            self._layers_planned(plan)
            if self.state.states is not None:
                self._states_planned(plan)
            self._windows_planned(plan)
        return plan

    def _states_planned(self, plan: BatchPlan) -> None:
        """Count what a plan does with records of recurrent states."""
        self._met["opened from a record"] += any(new.record is not None for new in plan.new_slots)
        self._met["parts from another prompt"] += any(
            len(self.state.requests[new.request_id].record_at) > 1 for new in plan.new_slots
        )
        self._met["record made"] += any(chunk.checkpoints for chunk in plan.whole_chunks)
        self._met["record of a sliced chunk"] += any(each.chunk.checkpoints for each in plan.slices)
        self._met["slot saved"] += len(plan.saved)
        self._met["slot saved alone"] += bool(plan.saved and not plan.chunks and not plan.slices)

    def _windows_planned(self, plan: BatchPlan) -> None:
        """Count what of a cached prefix had to be computed again for want of a page of windows."""
        kv = self.state.kv
        for new in plan.new_slots if kv.windows is not None else ():
            request = self.state.requests[new.request_id]
            found = kv.match(request.tokens, request.cacheable, request.extra_key)
            self._met["went on behind a window"] += request.cached > 0
            self._met["went on before a hole"] += len(found) * kv.page_size > request.cached
            self._met["went on between holes"] += 0 < request.cached < len(found) * kv.page_size
        self._windows_moved()

    def _windows_moved(self) -> None:
        """Count nodes that got or lost a page of windows while they have one of the other layers."""
        if self.state.kv.windows is None:
            return
        nodes = {node: node.window >= 0 for node in self.state.kv.tree.nodes()}
        for node, has_page in nodes.items():
            if node in self._nodes:
                self._met["a hole was filled"] += has_page and not self._nodes[node]
                self._met["a page of windows was taken"] += self._nodes[node] and not has_page
        self._nodes = nodes

    def _layers_planned(self, plan: BatchPlan) -> None:
        """Count what is beside layers of chunks in a plan."""
        layers = [each for each in plan.slices if each.is_resident]
        if not layers:
            return
        own = len(plan.chunks) - sum(each.completes for each in plan.slices)
        self._met["layers of a chunk"] += any(not each.completes for each in layers)
        self._met["layers beside decodes"] += plan.num_decodes > 0
        self._met["layers beside whole chunks"] += own > plan.num_decodes
        self._met["layers of two chunks"] += len(layers) > 1
        items = [self.scheduler.limits.layer_items(each.chunk.length) for each in layers]
        self._met["layers of several parts"] += any(each.parts > 1 for each in items)
        self._met["layers of a pipeline's single part"] += any(each.stages > each.parts == 1 for each in items)
        self._met["layers that score a prompt"] += any(each.completes and each.chunk.targets for each in layers)
        self._met["layers that embed"] += any(each.completes and each.chunk.embeds for each in layers)

    def _drafts_planned(self, plan: BatchPlan) -> None:
        """Count what is beside drafts in a plan."""
        if not any(chunk.num_drafts for chunk in plan.chunks):
            return
        self._met["drafts beside prompts"] += len(plan.chunks) > plan.num_decodes
        self._met["drafts beside a row with a late token"] += any(
            not chunk.num_drafts and len(chunk.token_ids) < chunk.length for chunk in plan.chunks
        )
        self._met["drafts of the runner"] += any(
            chunk.num_drafts and len(chunk.token_ids) < chunk.length for chunk in plan.chunks
        )
        self._met["drafts of an offloaded row"] += any(each.chunk.num_drafts for each in plan.slices if each.completes)
        self._met["drafts of an offloaded row, in several slices"] += any(
            each.chunk.num_drafts for each in plan.slices if each.completes and each.first != 0
        )

    def _drafts_verified(self, plan: BatchPlan, result: BatchResult) -> None:
        """Count what became of drafts."""
        rows = [chunk for chunk in plan.chunks if chunk.samples]
        for chunk, tokens, accepted in zip(rows, result.token_ids, result.accepted, strict=False):
            request = self.state.requests[chunk.request_id]
            if not chunk.num_drafts or request.finish_reason is not None:
                continue
            some = "all" if accepted == chunk.num_drafts else "some" if accepted else "none"
            self._met[f"{some} of the drafts accepted"] += 1
            self._met["tokens forced behind drafts"] += len(tokens) > accepted + 1
            self._met["no token of a row with drafts"] += not tokens
            self._met["stopped among the drafts"] += any(token in request.stop_ids for token in tokens[:-1])
            self._met["accepted of a request that was preempted"] += request.status is Status.DRAINING
            size = self.state.kv.page_size
            self._met["pages of drafts given back"] += -(-chunk.end // size) > (chunk.known_end + accepted) // size + 1

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        self._copies_ended(result.copies)
        self._drafts_verified(plan, result)
        self._met["row failed"] += len(result.errors)
        self._met["slice failed"] += len(result.slice_errors)
        return super().commit(plan, result, micros)

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        self._met["step failed" if launched else "launch failed"] += 1
        self._met["copies failed with their step"] += len(plan.copies) > 0
        return super().fail(plan, error, launched=launched)

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        self._copies_ended(done)
        return super().copied(done)

    def blocks_loaded(
        self, step: int, ready: int, error: str | None = None, lost_page: int | None = None
    ) -> list[Output]:
        what = "blocks loaded" if error is None else "block unreadable" if lost_page is None else "page lost"
        self._met[what] += 1
        return super().blocks_loaded(step, ready, error, lost_page)

    def flush_cache(self) -> int:
        self._met["flush while loading" if self.state.loading else "flush"] += 1
        return super().flush_cache()

    def forget_device(self) -> None:
        self._met["device lost while loading" if self.state.loading else "device lost"] += 1
        super().forget_device()

    def _checked(self, outputs: list[Output]) -> list[Output]:
        self._windows_moved()
        for output in super()._checked(outputs):
            if output.finish_reason is not None:
                self._met[f"end: {output.finish_reason}"] += 1
                self._met["prefix from the host"] += output.num_host_tokens > 0
                self._met["prefix from the disk"] += output.num_disk_tokens > 0
        return outputs

    def _opening(self) -> Request | None:
        """Return the request that has only some of its pages on a tier."""
        kv = self.state.kv
        lease = kv.offload.opening if kv.can_offload else None
        return next((each for each in self.state.offloaded.values() if each.lease is lease), None)

    def _progress(self, request: Request) -> str:
        """Return how far the load of a loading request, or the lease or open chunk of an offloaded one, has come."""
        if request is self._opening():
            return ", opening"
        chunk = self.state.open_chunk
        if chunk is not None and chunk.request is request:
            return ", in a chunk"
        if request.status is not Status.LOADING or not isinstance(request.lease, ResidentLease):
            return ""
        load = request.lease.load
        if load is None:
            return ", loaded"
        return ", under way" if load.open else ", no copy under way"

    def _copies_ended(self, done: Iterable[CopyDone]) -> None:
        tiers = self.state.kv.tiers
        for each in done:
            flight = tiers.flights.tickets.get(each.ticket) if isinstance(tiers, Tiers) else None
            if flight is None:
                continue  # of a device that was lost
            level = flight.load.sources[flight.index][0] if isinstance(flight, LoadedPage) else flight.level
            kind = "load" if isinstance(flight, LoadedPage) else "store" if isinstance(flight, NodeStore) else "offload"
            end = "failed" if each.error is not None else "ended"
            assert isinstance(tiers, Tiers)
            self._met[f"{kind} of the {tiers.order[level]} {end}"] += 1


def preemptions(request: Request) -> int:
    """Return how often a request was preempted, for want of memory or for another one."""
    return request.preemptions + request.priority_preemptions
