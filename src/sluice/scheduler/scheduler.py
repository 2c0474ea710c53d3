"""Scheduler: which requests run in the next step.

There is no prefill phase and no decode phase. A request is a list of known tokens and two counters, `scheduled`
(promised to the device) and `computed` (known done); each step gives each request some of the tokens it still lacks,
in the order of a table of passes (`passes.py`), within the budgets of the step (`prefill.py`). A chunk that reaches
the end of what is known samples the next token. So a cached prefix is a counter that starts higher, a decode is a
chunk of length 1, and a preempted request is one whose counters went back to what is cached.

`schedule` makes an immutable plan and moves `scheduled`; `commit` folds the plan's result in and moves `computed`.
Several plans may be in flight; they are committed in the order they were made. Only `add`, `abort`, `schedule`,
`commit`, `fail` and `forget_device` change a request. No tensor, no clock, no text.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.kv.manager import KVManager
from sluice.scheduler.admission import check_fits, open_further
from sluice.scheduler.backlog import queued_prefill_tokens
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.chunk_sizer import ChunkSizer
from sluice.scheduler.drafting.drafter import Drafter
from sluice.scheduler.offloading import awaits_loads, is_prefill, lease_of, lose_page
from sluice.scheduler.pacer import Pacer, Pacing
from sluice.scheduler.passes import Pass, groups_of
from sluice.scheduler.prefill import PrefillAdder
from sluice.scheduler.queue_limits import QueueLimits
from sluice.scheduler.request import Request
from sluice.scheduler.rows import advance, end_request
from sluice.scheduler.state import SchedulerState
from sluice.types import (
    CHUNKS_BY_TIME,
    NO_ADAPTERS,
    AdapterSwap,
    BatchPlan,
    BatchResult,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    SchedulerLimits,
    StoredPage,
    Submit,
    Tier,
)


class DuplicateRequest(ValueError):
    """A request has the id of another one."""


class Scheduler:
    """Turns requests into plans and results into outputs.

    Args:
        limits: budgets and policies.
        kv: an empty pool.
        groups: passes that fill a step, instead of those of `limits.schedule`; the first group that fills anything is
            the step.
        pacing: what is known of the machine's speed; used with an ITL target, and for chunks by time.
        drafter: guesses tokens, of which a row has at most `limits.num_draft_tokens`.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv: KVManager,
        groups: Sequence[Sequence[Pass]] | None = None,
        pacing: Pacing | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.limits = limits
        pacing = pacing or Pacing()
        pacer = Pacer(limits, kv.page_size, pacing) if limits.itl_target else None
        sizer = ChunkSizer(limits, kv.page_size, pacing) if limits.dynamic_chunking == CHUNKS_BY_TIME else None
        self.state = SchedulerState(kv, limits, pacer, sizer, drafter if limits.num_draft_tokens else None)
        self._groups = groups_of(limits) if groups is None else groups
        self._queue_limits = QueueLimits(self.state, limits)

    @property
    def has_work(self) -> bool:
        """Whether a request has not left, or something is left to copy."""
        return bool(self.state.requests) or self.state.kv.tiers.has_work or self.state.has_saves

    @property
    def awaits_report(self) -> bool:
        """Copies, loads of an offloaded chunk or of an adapter, or grammars, are not done; with no step in flight, no
        copy or load is with the device."""
        state = self.state
        awaits_others = bool(state.compiling or state.adapters.requests)
        return state.kv.tiers.num_in_flight > 0 or awaits_loads(state) or awaits_others

    def add(self, submit: Submit) -> None:
        """Queue a request.

        Raises:
            DuplicateRequest: the id is in use.
            QueueFull: too much waits already.
            NoTier: it needs a tier that is disabled.
            ValueError: an empty prompt, prompt + output that could never fit the KV pool, nothing left to do, an
                unknown priority class, or a value that cannot be right.
        """
        if submit.request_id in self.state.requests:
            raise DuplicateRequest(f"request id {submit.request_id} is in use")
        if not submit.is_resumed:
            self._queue_limits.check_count()
        request = Request(submit, self.limits.lookahead, self.limits.block_size)
        request.join_class(self.limits)
        self._check(request)
        if not submit.is_resumed:
            self._queue_limits.check_tokens(request)
        self.state.add(request)

    def _check(self, request: Request) -> None:
        """Raise ValueError if a new request can never run to its end."""
        if not request.prompt_len:
            raise ValueError("the prompt is empty; it needs at least one token")
        check_fits(self.state.kv, request)
        if not 0 <= request.prompt_logprobs_sent <= request.num_targets:
            raise ValueError(
                f"{request.prompt_logprobs_sent} prompt log-probabilities were already sent, the prompt has"
                f" {request.num_targets}"
            )
        if request.embeds and request.submit.grammar:
            raise ValueError("a request that embeds has no output for a grammar")
        if request.embeds and request.num_outputs:
            raise ValueError(f"a request that embeds has no outputs, got {request.num_outputs}")
        if not request.embeds and request.num_outputs >= request.max_tokens:
            raise ValueError(f"{request.num_outputs} tokens were already sent, max_tokens is {request.max_tokens}")
        if request.submit.adapter and not self.limits.max_loras:
            raise ValueError(NO_ADAPTERS)
        if request.block_size and (request.embeds or request.submit.grammar or request.num_targets):
            raise ValueError(
                f"a model that fills in blocks of {request.block_size} tokens makes no embeddings, follows no grammar"
                " and scores no prompt"
            )
        if request.lookahead < 0:
            raise ValueError(f"lookahead must be at least 0, got {request.lookahead}")

    def occupancy(self) -> Occupancy:
        """Return how full the scheduler is now."""
        state, kv = self.state, self.state.kv
        return Occupancy(
            running=state.num_running + len(state.offloaded),
            waiting=len(state.waiting),
            free_pages=kv.pool.num_free,
            cached_pages=kv.tree.num_evictable,
            total_pages=kv.num_pages,
            partial=len(state.partial) + sum(is_prefill(request) for request in state.offloaded.values()),
            preemptions=state.preemptions,
            loading=len(state.loading),
            compiling=len(state.compiling),
            tiers=kv.tiers.uses(),
            held=len(state.adapters.requests),
            adapters=state.adapters.uses(),
            records=0 if kv.records is None else kv.records.num_records,
            used_records=0 if kv.records is None else kv.records.num_records - kv.records.num_free,
            window_pages=0 if kv.windows is None else kv.windows.pool.num_pages,
            used_window_pages=0 if kv.windows is None else kv.windows.num_held,
        )

    def queued_prefill_tokens(self) -> int:
        """Return how many prompt tokens are neither computed nor in a cache, of all requests."""
        return queued_prefill_tokens(self.state)

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        """End a request of any status now. Returns nothing for ids that are unknown or have ended, or if the
        reason is EXPIRED and the request has begun."""
        request = self.state.requests.get(request_id)
        if request is None or request.finish_reason is not None:
            return []
        if reason is FinishReason.EXPIRED and request.has_begun:
            return []
        return [end_request(self.state, request, reason)]

    def schedule(self) -> BatchPlan | None:
        """Plan the next step. Returns None if nothing can be planned before a commit or a new request."""
        state = self.state
        state.waiting.promote(state.step)
        has_room = open_further(state)
        plan = self._plan(state)
        while plan is None and has_room and not state.num_in_flight and state.kv.is_opening:  # no stream waits
            has_room = open_further(state)  # if not, what is in use on the tier has to be given back first
            plan = self._plan(state)
        state.left_waiting = len(state.waiting) > 0
        return plan

    def _plan(self, state: SchedulerState) -> BatchPlan | None:
        for group in self._groups:
            batch = BatchBuilder(self.limits.experts, state.states)
            adder = PrefillAdder(state, self.limits, batch)
            for each_pass in group:
                each_pass(state, self.limits, batch, adder)
            if len(batch):
                break
        copies, dropped = state.kv.tiers.take_copies()
        if not (len(batch) or copies or dropped or state.has_saves):
            return None
        pace = adder.pace() if len(batch) else None
        plan = batch.freeze(state.step, adder.bound_by, copies, dropped, pace, state.given_up)
        state.given_up.clear()
        state.step += 1
        state.num_in_flight += 1
        return plan

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        """Fold the result of the oldest plan in flight into its requests.

        Args:
            micros: microseconds that the step took, which the next ones are planned by if there is an ITL target, or
                chunks are by time; 0 if they were not measured.
        """
        assert plan.step == result.step, f"result of step {result.step} for plan {plan.step}"
        self.state.num_in_flight -= 1
        if self.state.pacer is not None:
            self.state.pacer.ended(plan.step, micros)
        if self.state.sizer is not None:
            self.state.sizer.ended(plan.step, max(result.stage_micros, default=micros))
        if self.state.drafter is not None and len(plan.chunks) == plan.num_decodes and not plan.slices:
            self.state.drafter.stepped(plan.num_decodes, plan.num_drafts, micros)
        self._release_windows(plan)
        if plan.saved and self.state.states is not None:
            self.state.states.committed(plan)
        outputs = self.copied(result.copies)
        outputs += self._end_failed_slices(plan, result)
        errors = {error.row: error.message for error in result.errors}
        samples = iter(result.token_ids)
        logprobs, prompt_logprobs = iter(result.logprobs), iter(result.prompt_logprobs)
        embeddings, accepted = iter(result.embeddings), iter(result.accepted)
        for index, chunk in enumerate(plan.chunks):
            request = self.state.requests[chunk.request_id]
            request.pending -= chunk.samples
            row = Output(
                request.id,
                request.num_outputs,
                next(samples) if chunk.samples else (),
                request.num_cached_tokens,
                None,
                None,
                next(logprobs, ()) if chunk.samples else (),
                next(prompt_logprobs) if chunk.targets else (),
                request.num_host_tokens,
                request.num_disk_tokens,
                next(embeddings) if chunk.embeds else b"",
                0 if request.block_size else chunk.num_drafts,
                next(accepted, 0) if chunk.samples else 0,
            )
            if index in errors and self.state.states is not None:
                self.state.states.spoilt(request)
            if request.finish_reason is None:
                if index in errors:
                    outputs.append(end_request(self.state, request, FinishReason.ERROR, errors[index]))
                else:
                    outputs += advance(self.state, request, chunk, row, is_complete=index in result.complete)
            self.state.row_done(request)
        self._slices_done(plan)
        assert next(samples, None) is None, f"step {plan.step} gave more samples than rows that sample"
        return outputs

    def _end_failed_slices(self, plan: BatchPlan, result: BatchResult) -> list[Output]:
        """End the requests whose offloaded work failed."""
        outputs: list[Output] = []
        for error in result.slice_errors:
            request = self.state.requests[plan.slices[error.row].chunk.request_id]
            if request.finish_reason is None:
                outputs.append(end_request(self.state, request, FinishReason.ERROR, error.message))
        return outputs

    def _release_windows(self, plan: BatchPlan) -> None:
        """Note that a plan's offloaded work reads nothing on the device any more."""
        for each in plan.slices:
            if not each.is_resident:
                lease_of(self.state.requests[each.chunk.request_id]).bases.popleft()

    def _slices_done(self, plan: BatchPlan) -> None:
        """Note that slices of chunks that continue were committed or failed."""
        for each in plan.slices:
            if not each.completes:
                self.state.row_done(self.state.requests[each.chunk.request_id])

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        """Note that copies have ended, and end the offloaded requests whose pages could not be stored."""
        for each in done:
            load = self.state.kv.copied(each)
            if load is not None:
                self.state.loaded(load)
        for request in self.state.offloaded.values():
            lease_of(request).share_stored(request.tokens)
        lost = [(request, lease_of(request).error) for request in self.state.offloaded.values()]
        return [
            end_request(self.state, request, FinishReason.TIER_UNAVAILABLE, error)
            for request, error in lost
            if error is not None
        ]

    def blocks_loaded(
        self, step: int, ready: int, error: str | None = None, lost_page: int | None = None
    ) -> list[Output]:
        """Blocks were loaded, or cannot be read, for the chunk that `step` began, unless it is over.

        Args:
            lost_page: the page of the tier that cannot be read, if it is one alone. It is computed again.
        """
        chunk = self.state.open_chunk
        if chunk is None or chunk.step != step:
            return []
        if error is not None:
            if lost_page is not None and lose_page(self.state, chunk.request, lost_page):
                return []
            return [end_request(self.state, chunk.request, FinishReason.TIER_UNAVAILABLE, error)]
        chunk.ready = max(chunk.ready, ready)
        return []

    def compiled(self, request_id: int, error: str | None = None) -> list[Output]:
        """A request's grammar was compiled, so it waits like the others; or it cannot be used, so the request ends.
        Reports of requests that have ended are ignored."""
        request = self.state.compiling.get(request_id)
        if request is None:
            return []
        if error is not None:
            return [end_request(self.state, request, FinishReason.ERROR, error)]
        self.state.compiled(request)
        return []

    def take_swaps(self) -> Sequence[AdapterSwap]:
        """Return the adapters that are to be loaded now, each once. `adapter_loaded` reports what became of one."""
        return self.state.adapters.take_swaps()

    def adapter_loaded(self, adapter: str, error: str | None = None) -> list[Output]:
        """An adapter was loaded, so that its requests wait like the others; or it cannot be, so they end."""
        if error is None:
            self.state.loaded_adapter(adapter)
            return []
        lost = self.state.failed_adapter(adapter)
        return [end_request(self.state, request, FinishReason.ERROR, error) for request in lost]

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        """End the requests of the oldest plan in flight, which failed as a whole; the others continue.

        Args:
            launched: whether the plan was begun: then its copies with the disk will end by themselves, and the pages
                that it drops are dropped.
        """
        self.state.num_in_flight -= 1
        if self.state.pacer is not None:
            self.state.pacer.failed(plan.step)
        if self.state.sizer is not None:
            self.state.sizer.ended(plan.step, 0)
        self._release_windows(plan)
        if not launched:
            self.state.kv.tiers.forget_again(plan.dropped)
        if self.state.states is not None:
            self.state.states.failed(plan, self.state.requests)
        outputs = self.copied(
            [
                CopyDone(copy.ticket, error=error)
                for copy in plan.copies
                if not launched or Tier.DISK not in (copy.source, copy.target)
            ]
        )
        for each in plan.slices:
            request = self.state.requests[each.chunk.request_id]
            if request.finish_reason is None:
                outputs.append(end_request(self.state, request, FinishReason.ERROR, error))
        for chunk in plan.chunks:
            request = self.state.requests[chunk.request_id]
            request.pending -= chunk.samples
            if request.finish_reason is None:
                outputs.append(end_request(self.state, request, FinishReason.ERROR, error))
            self.state.row_done(request)
        self._slices_done(plan)
        return outputs

    def forget_device(self) -> None:
        """Forget what was on the device, which has lost its state with nothing in flight: no page is cached any more,
        and every request waits again."""
        assert not any(r.in_flight for r in self.state.requests.values()), "a step is in flight"
        for request in self.state.seated():
            self.state.preempt(request)
        self.state.given_up.clear()
        if self.state.states is not None:
            self.state.states.forget_device()
        self.state.kv.forget_flights()
        self.state.kv.flush()

    def flush_cache(self) -> int:
        """Forget every cached page that no request holds, on all tiers, and recent answers. Returns how many pages."""
        if self.state.drafter is not None:
            self.state.drafter.flush()
        return self.state.kv.flush()

    def restore(self, pages: Sequence[StoredPage]) -> int:
        """Take over what a disk tier held when it was opened, before any request. Returns how many pages.

        Raises:
            ValueError: pages that cannot be this scheduler's.
        """
        return self.state.kv.tiers.restore(pages)
