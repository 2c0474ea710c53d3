"""SchedulerState: the status of every request, and the few methods that change one.

    add -> WAITING -> PARTIAL -> DECODING -> DRAINING -> GONE
      |     ^  ^  |         ^                      |
      |     |  |  +-> LOADING   +-> FORCED         |
      |     |  |  +-> OFFLOADED ------->-----------+
      |     |  +------------- preempted -----------+
      +-> COMPILING, HELD

A request may leave its slot at any moment: because it ends, is aborted, fails or is preempted. It then drains: it keeps
its slot and pages until its last row in flight is committed, because a step on the device may still use them. A LOADING
request has no rows, so it is gone at once; the pages that are being loaded belong to the load. The rest of the
scheduler does not have to know about any of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.kv.flights import PageLoad
from sluice.kv.manager import KVManager, Lease, ResidentLease
from sluice.kv.offload import OffloadLease
from sluice.scheduler.adapters import AdapterPlaces
from sluice.scheduler.chunk_sizer import ChunkSizer
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.pacer import Pacer
from sluice.scheduler.queue import WaitingQueue
from sluice.scheduler.request import Request, Status
from sluice.scheduler.reserve import reservation_of
from sluice.scheduler.states import StatePlanner
from sluice.types import Chunk, FinishReason, SchedulerLimits, WorkItems


@dataclass(slots=True, eq=False)
class OpenChunk:
    """A chunk of an offloaded request that was begun, and whose work items are not all planned."""

    request: Request
    chunk: Chunk
    base: int
    """Pages of its context that are attended to on the tier."""
    window_pages: tuple[int, ...]
    """Pages on the device that hold what is behind these."""
    items: WorkItems
    step: int
    """The step that begins it; names it in reports of its loads."""
    ready: int
    """Work items that may be planned, from the first one on: those whose blocks are loaded, or all, if no loads are
    reported."""
    planned: int = 0
    """Work items that were planned."""
    is_begun: bool = False
    """A slice of it was planned."""


class SchedulerState:
    """The requests of one engine by status, and the slots and pages they hold."""

    def __init__(
        self,
        kv: KVManager,
        limits: SchedulerLimits,
        pacer: Pacer | None = None,
        sizer: ChunkSizer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.kv = kv
        self.pacer = pacer
        """Measures prefill by its time; None without an ITL target."""
        self.sizer = sizer
        """Sizes chunks by the time of steps; None if they are not dynamic, or at a fixed position."""
        self.drafter = drafter
        """Guesses tokens of rows; None: no row has drafts."""
        self.states = None if limits.states is None else StatePlanner(limits.states, kv)
        """Plans the records of recurrent states; None for a model whose layers have none."""
        self.num_draft_tokens = limits.num_draft_tokens
        self.num_drafting = 0
        """Rows in flight that were planned when drafts were wanted for them."""
        self.has_room_for_drafts = True
        """The latest step that could have drafts had room for some."""
        self.reservation = reservation_of(limits)
        self.step = 0
        """Number of the next plan."""
        self.num_in_flight = 0
        """Plans that were neither committed nor failed."""
        self.preemptions = 0
        """How often a request was preempted, for any reason."""
        self._takes_turns = limits.pipeline_stages > 1
        self.num_slots = limits.max_running_requests
        self.free_slots = list(range(self.num_slots - 1, -1, -1))
        self.requests: dict[int, Request] = {}
        self.compiling: dict[int, Request] = {}
        """Requests whose grammar is not ready."""
        self.waiting = WaitingQueue(limits)
        self.adapters = AdapterPlaces(limits.max_loras, self.waiting.rank)
        """Which adapters are loaded, and the requests that wait for theirs."""
        self.left_waiting = False
        """The last plan left requests waiting."""
        self.loading: dict[int, Request] = {}
        self.partial: dict[int, Request] = {}
        self.decoding: dict[int, Request] = {}
        """Requests that decode; in a pipeline, in the order of their turns."""
        self.forced: dict[int, Request] = {}
        """Requests that decode, and have tokens to compute that a grammar forced, in the order of their turns."""
        self.offloaded: dict[int, Request] = {}
        """Requests whose context is on a tier, in the order of their turns."""
        self.given_up: set[int] = set()
        """Slots whose resident chunk was given up half done since the last plan."""
        self.open_chunk: OpenChunk | None = None
        """The chunk of an offloaded request that is begun and not all planned."""
        self.draining: dict[int, Request] = {}
        self.computing: dict[int, Request] = {}
        """Requests of `partial` and `decoding` whose prompt is not all computed."""

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self.requests[request.id] = request
        if request.submit.grammar:
            request.status = Status.COMPILING
            self.compiling[request.id] = request
        else:
            self._enqueue(request)

    def compiled(self, request: Request) -> None:
        """Move a request from COMPILING to WAITING, or to HELD."""
        del self.compiling[request.id]
        self._enqueue(request)

    def loaded_adapter(self, adapter: str) -> None:
        """Move the requests that are held for an adapter to WAITING."""
        self._push(self.adapters.loaded(adapter))

    def failed_adapter(self, adapter: str) -> list[Request]:
        """Note that an adapter cannot be loaded. Returns the requests that were held for it, which are to end."""
        lost, passed = self.adapters.failed(adapter)
        self._push(passed)
        return lost

    def _enqueue(self, request: Request) -> None:
        """Let a request wait: for its turn, or for its adapter before that."""
        if request.submit.adapter:
            request.status = Status.HELD
            self._push(self.adapters.enter(request))
        else:
            self._push([request])

    def _push(self, requests: Iterable[Request]) -> None:
        for request in requests:
            request.status = Status.WAITING
            self.waiting.push(request, self.step)

    @property
    def has_saves(self) -> bool:
        """Whether recurrent states of slots that were given back are to be saved."""
        return self.states is not None and self.states.has_saves

    def running(self) -> Iterator[Request]:
        """Yield the requests that have chunks computed on the device."""
        yield from self.partial.values()
        yield from self.decoding.values()
        yield from self.forced.values()

    @property
    def num_running(self) -> int:
        """How many requests `running` yields."""
        return len(self.partial) + len(self.decoding) + len(self.forced)

    def started(self) -> Iterator[Request]:
        """Yield the requests whose context is on the device, or is being loaded, and that are to continue."""
        yield from self.running()
        yield from self.loading.values()

    def seated(self) -> list[Request]:
        """Return every request that has a slot and is to continue."""
        return [*self.started(), *self.offloaded.values()]

    def places_taken(self, request: Request) -> int:
        """Return how many of the `max_partial_prefills` places that a prompt may have are taken. Under the policy
        `deadline` each class has places of its own."""
        if not self.waiting.by_deadline:
            return len(self.partial)
        return sum(each.level == request.level for each in self.partial.values())

    def streams(self) -> Iterator[Request]:
        """Yield the requests that wait for their next token, or will when the steps in flight have ended."""
        yield from self.decoding.values()
        yield from self.forced.values()
        yield from (each for each in self.offloaded.values() if each.scheduled >= each.prefill_end)

    def ready(self) -> list[Request]:
        """Return the loading requests that wait for nothing but their turn, in order of arrival."""
        ready = (r for r in self.loading.values() if r.lease is not None and not r.lease.num_loading)
        return sorted(ready, key=lambda request: request.id)

    def oldest_running(self) -> Request:
        """Return the running request that came first; if none runs, the first that could. It is never preempted for
        want of memory, so it always ends."""
        return min(self.running(), key=lambda request: request.id, default=None) or self.ready()[0]

    def start(self, request: Request, lease: Lease) -> None:
        """Move a request from WAITING to PARTIAL, with a slot."""
        self._seat(request, lease)
        self._begin(request)

    def load(self, request: Request, lease: Lease) -> None:
        """Move a request from WAITING to LOADING, with a slot. Its lease is loading."""
        self._seat(request, lease)
        request.status = Status.LOADING
        self.loading[request.id] = request

    def loaded(self, load: PageLoad) -> None:
        """Note that a load is over: the request that waits for it, if there still is one, holds what it brought."""
        for request in self.loading.values():
            if isinstance(request.lease, ResidentLease) and request.lease.load is load:
                request.lease.end_load()
                self._count_cached(request)

    def begin(self, request: Request) -> None:
        """Move a request from LOADING to PARTIAL."""
        del self.loading[request.id]
        self._begin(request)

    def start_offloaded(self, request: Request, lease: OffloadLease) -> None:
        """Move a request from WAITING to OFFLOADED, with a slot."""
        self._seat(request, lease)
        if self.kv.offload.limits.decode_lag:
            request.prefill_end = min(request.prefill_end, request.prompt_len)
        request.status = Status.OFFLOADED
        self.offloaded[request.id] = request
        self.opened_further(request, lease)

    def opened_further(self, request: Request, lease: OffloadLease) -> None:
        """Note that an offloaded request's lease has found and reserved more of its pages."""
        self._count_cached(request)
        if not lease.is_opening:
            self._note_cached(request)

    def force(self, request: Request) -> None:
        """Note that a request was brought several tokens at once, and move it from DECODING to FORCED: all its tokens
        are prefill until they are planned. Those of an offloaded request are decoded one by one where decoded tokens
        attend to a selection."""
        if request.status is Status.OFFLOADED and self.kv.offload.limits.decode_lag:
            return
        request.prefill_end = len(request.tokens)
        if request.status is Status.DECODING:
            assert not request.pending, f"request {request.id} was brought several tokens and {request.pending} pend"
            del self.decoding[request.id]
            request.status = Status.FORCED
            self.forced[request.id] = request
            self.computing[request.id] = request

    def prefilled(self, request: Request) -> None:
        """Move a request from PARTIAL or FORCED to DECODING: all tokens known are planned."""
        del self._members(request)[request.id]
        request.status = Status.DECODING
        self.decoding[request.id] = request

    def decoded(self, request: Request) -> None:
        """Note that a request's next token was planned: where requests take turns, it is last now."""
        if self._takes_turns:
            request.planned_at = self.step
            self.decoding[request.id] = self.decoding.pop(request.id)

    def preempt(self, request: Request) -> None:
        """Take pages and slot of a request back; it will wait again with the tokens it has."""
        self.preemptions += 1
        self.set_back(request)

    def set_back(self, request: Request) -> None:
        """Do the same for a request that is to compute again what it has lost."""
        assert request.id in self._members(request), f"request {request.id} is {request.status}"
        self._drain(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        """End a request of any status; it is gone once nothing of it is in flight."""
        assert request.finish_reason is None, f"request {request.id} ended before: {request.finish_reason}"
        request.finish_reason = reason
        if request.status is Status.WAITING:
            self.waiting.remove(request)
            self._leave(request)
        elif request.status is Status.HELD:
            if request.id in self.adapters.requests:
                self._push(self.adapters.withdraw(request))
            self._forget(request)
        elif request.status is Status.COMPILING:
            del self.compiling[request.id]
            self._forget(request)
        elif request.status is not Status.DRAINING:
            self._drain(request)

    def row_done(self, request: Request) -> None:
        """Note that a row of the request was committed or failed."""
        request.in_flight -= 1
        if request.is_drafting:
            request.is_drafting = False
            self.num_drafting -= 1
        if request.status is Status.DRAINING and request.in_flight == 0:
            self._drained(request)

    def _drain(self, request: Request) -> None:
        del self._members(request)[request.id]
        self.computing.pop(request.id, None)
        if self.open_chunk is not None and self.open_chunk.request is request:
            self.open_chunk = None
        if request.sliced is not None:
            self.given_up.add(request.slot)
        request.status = Status.DRAINING
        self.draining[request.id] = request
        if request.in_flight == 0:
            self._drained(request)

    def _drained(self, request: Request) -> None:
        del self.draining[request.id]
        self._give_back(request)
        self.free_slots.append(request.slot)
        request.slot = -1
        if request.finish_reason is None:
            request.status = Status.WAITING
            request.cached = request.computed = request.scheduled = 0
            request.num_passes = 0
            request.sliced = None
            self.waiting.push(request, self.step)
        else:
            self._leave(request)

    def _leave(self, request: Request) -> None:
        """Let a request that has ended go, which was in the queue at least."""
        self._forget(request)
        if request.submit.adapter:
            self._push(self.adapters.leave(request))

    def _give_back(self, request: Request) -> None:
        """Give all pages of a request back; those of a failed request are not cached."""
        assert request.lease is not None, f"request {request.id} drains without pages"
        if request.finish_reason is not None and request.finish_reason.is_error:
            request.lease.discard()
            if self.states is not None:
                self.states.spoilt(request)
        else:
            request.lease.release(request.tokens, request.computed)
            if self.states is not None:
                self.states.released(request)
        request.lease = None

    def _members(self, request: Request) -> dict[int, Request]:
        """Return the requests of the status of one that has a slot and does not drain."""
        if request.status is Status.LOADING:
            return self.loading
        if request.status is Status.OFFLOADED:
            return self.offloaded
        if request.status is Status.FORCED:
            return self.forced
        return self.partial if request.status is Status.PARTIAL else self.decoding

    def _seat(self, request: Request, lease: Lease) -> None:
        """Give a waiting request a slot and its lease."""
        self.waiting.start(request)
        request.slot = self.free_slots.pop()
        request.lease = lease
        if self.states is not None:
            self.states.seated(request)
        request.path = []
        request.usable_name = request.alike = None
        request.found = []
        request.prefill_end = len(request.tokens)
        self._count_cached(request)

    def _count_cached(self, request: Request) -> None:
        assert request.lease is not None, f"request {request.id} has no pages"
        request.cached = request.computed = request.scheduled = request.lease.cached.total

    def _begin(self, request: Request) -> None:
        """Move a request that has a slot to PARTIAL."""
        self._note_cached(request)
        request.status = Status.PARTIAL
        self.partial[request.id] = request
        self.computing[request.id] = request

    def _note_cached(self, request: Request) -> None:
        """Note how much of its prompt was cached when the request was first admitted."""
        assert request.lease is not None, f"request {request.id} has no pages"
        if request.num_cached_tokens < 0:
            total, on_host, on_disk = request.lease.cached
            count = request.num_cached_tokens = min(total, request.prompt_len)  # its own outputs may be cached too
            request.num_host_tokens = min(on_host, count)
            request.num_disk_tokens = min(on_disk, count - request.num_host_tokens)

    def _forget(self, request: Request) -> None:
        request.status = Status.GONE
        if self.drafter is not None:
            self.drafter.ended(request)
        del self.requests[request.id]
