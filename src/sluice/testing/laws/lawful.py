"""Lawful: a scheduler that checks all laws at every call, among them laws 10 to 12, which are about a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from sluice.kv.manager import ResidentLease
from sluice.kv.offload import OffloadLease
from sluice.scheduler.drafting.draft_rows import waits_for_drafts
from sluice.scheduler.passes import needs_page
from sluice.scheduler.request import Status
from sluice.scheduler.reserve import PROTECT_AFTER
from sluice.scheduler.scheduler import Scheduler
from sluice.testing.laws.pages import LawBroken
from sluice.testing.laws.plans import Openings, check_plan, layered, offloaded, resident, tokens_of_row
from sluice.testing.laws.state import check_state
from sluice.testing.laws.states import StateLives
from sluice.testing.laws.turns import DecodeTurns
from sluice.testing.laws.unused import no_budget_is_unused
from sluice.testing.laws.view import View, live
from sluice.testing.laws.windows import WindowRows
from sluice.types import (
    AdapterSwap,
    BatchPlan,
    BatchResult,
    ChunkSlice,
    CopyDone,
    FinishReason,
    Occupancy,
    Output,
    StoredPage,
    Submit,
)


class Lawful:
    """A scheduler that checks every law after each call. Its methods are those of `Scheduler`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = scheduler.state
        self.in_flight: list[tuple[BatchPlan, dict[int, tuple[int, ...]]]] = []
        """Plans not committed, each with the page-table row of every request in it."""
        self.ended: dict[int, FinishReason] = {}
        self._next_start: dict[int, int] = {}
        self._rows: dict[int, list[int]] = {}
        self._stored_rows: dict[int, list[int]] = {}
        self._slices: dict[int, ChunkSlice] = {}
        """Request -> the latest slice of its chunk that is not complete."""
        self._begun_in: dict[int, int] = {}
        """Request -> the step that began its latest chunk."""
        self._ready: dict[int, int] = {}
        """Step that began a chunk -> work items of it that were reported as ready."""
        self._num_outputs: dict[int, int] = {}
        self._submits: dict[int, Submit] = {}
        self._num_sent: dict[int, int] = {}
        self._turns = DecodeTurns()
        self._openings = Openings()
        self._states = StateLives()
        self._windows = WindowRows()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def awaits_report(self) -> bool:
        return self.scheduler.awaits_report

    def add(self, submit: Submit) -> None:
        self.scheduler.add(submit)
        request_id = submit.request_id
        self._num_outputs[request_id], self._num_sent[request_id] = len(submit.output_ids), submit.prompt_logprobs_sent
        self._submits[request_id] = submit
        check_state(self.state)

    def occupancy(self) -> Occupancy:
        return self.scheduler.occupancy()

    def queued_prefill_tokens(self) -> int:
        return self.scheduler.queued_prefill_tokens()

    def abort(self, request_id: int, reason: FinishReason = FinishReason.ABORT) -> list[Output]:
        return self._checked(self.scheduler.abort(request_id, reason))

    def flush_cache(self) -> int:
        pages = self.scheduler.flush_cache()
        check_state(self.state)
        return pages

    def restore(self, pages: Sequence[StoredPage]) -> int:
        taken = self.scheduler.restore(pages)
        check_state(self.state)
        return taken

    def take_swaps(self) -> Sequence[AdapterSwap]:
        return self.scheduler.take_swaps()

    def adapter_loaded(self, adapter: str, error: str | None = None) -> list[Output]:
        return self._checked(self.scheduler.adapter_loaded(adapter, error))

    def forget_device(self) -> None:
        self.scheduler.forget_device()
        self._states = StateLives()
        check_state(self.state)

    def schedule(self) -> BatchPlan | None:
        forced = set(self.state.forced)
        waiting = {
            each.id
            for each in self.state.decoding.values()
            if waits_for_drafts(self.state, self.scheduler.limits, each)
        }
        self._turns.before(self.state, self.scheduler.limits)
        self._openings.before(self.state)
        plan = self.scheduler.schedule()
        self._openings.check(self.state, plan)
        check_state(self.state)
        if plan is None:
            if not (bool(self.in_flight) or not self.has_work or self.awaits_report):
                raise LawBroken(
                    f"law 12: nothing to plan, nothing in flight, and requests {sorted(self.state.requests)} wait"
                )
            if not (bool(self.in_flight) or not any(self.state.running())):
                raise LawBroken(
                    f"law 12: requests {[r.id for r in self.state.running()]} wait for a disk that is not theirs"
                )
            return None
        check_plan(self.state, self.scheduler.limits, plan, forced)
        no_budget_is_unused(self.state, self.scheduler.limits, plan)
        self._preemptions_are_bounded()
        self._decodes_go_first(plan, waiting)
        self._turns.check(self.state, self.scheduler.limits, plan)
        for new in plan.new_slots:
            self._slices.pop(new.request_id, None)  # of an earlier admission
        self._slices_wait_for_their_blocks(plan)
        self._chunks_tile(plan)
        rows = self._rows_follow(plan)
        self._writes_are_undisturbed(plan, rows)
        self._states.planned(self.state, plan)
        self._windows.planned(self.state, plan)
        self.in_flight.append((plan, rows))
        self._nothing_in_flight_is_free()
        self._pending_is_in_flight()
        return plan

    def commit(self, plan: BatchPlan, result: BatchResult, micros: int = 0) -> list[Output]:
        if self.in_flight[0][0] is not plan:
            raise LawBroken(f"plan {plan.step} is committed out of order")
        del self.in_flight[0]
        self._windows.ended()
        self._note_ends(plan, result)
        self._states.committed(plan, result)
        return self._checked(self.scheduler.commit(plan, result, micros))

    def _note_ends(self, plan: BatchPlan, result: BatchResult) -> None:
        """8, over a run: a chunk follows one that was to sample and brought nothing from its last token on, and one
        with drafts from the first that was not accepted on; a pass over an open block from that block on."""
        failed = {error.row for error in result.errors}
        brought, accepted = iter(result.token_ids), iter(result.accepted)
        for row, chunk in enumerate(plan.chunks):
            if not chunk.samples:
                continue
            tokens, count = next(brought, None), next(accepted, 0)
            if not 0 <= count <= min(chunk.num_drafts, max(0, len(tokens or ()) - 1)):
                raise LawBroken(f"law 19: {count} drafts of {chunk} are accepted, which brought {tokens}")
            if self.scheduler.limits.block_size:
                self._next_start[chunk.request_id] = chunk.end - self.scheduler.limits.block_size
            elif tokens == () and row not in failed:
                self._next_start[chunk.request_id] = chunk.known_end - 1
            elif chunk.num_drafts:
                self._next_start[chunk.request_id] = chunk.known_end + count

    def fail(self, plan: BatchPlan, error: str, *, launched: bool = True) -> list[Output]:
        if self.in_flight[0][0] is not plan:
            raise LawBroken(f"plan {plan.step} fails out of order")
        del self.in_flight[0]
        self._states.failed(plan)
        self._windows.ended()
        return self._checked(self.scheduler.fail(plan, error, launched=launched))

    def copied(self, done: Sequence[CopyDone]) -> list[Output]:
        return self._checked(self.scheduler.copied(done))

    def blocks_loaded(
        self, step: int, ready: int, error: str | None = None, lost_page: int | None = None
    ) -> list[Output]:
        self._ready[step] = max(ready, self._ready.get(step, 0))
        return self._checked(self.scheduler.blocks_loaded(step, ready, error, lost_page))

    def compiled(self, request_id: int, error: str | None = None) -> list[Output]:
        return self._checked(self.scheduler.compiled(request_id, error))

    def _checked(self, outputs: list[Output]) -> list[Output]:
        """11. Every request ends exactly once, nothing comes after its end, and no token is skipped or repeated."""
        for output in outputs:
            if output.request_id in self.ended:
                raise LawBroken(f"law 11: {output} after the end of its request")
            seen = self._num_outputs[output.request_id]
            if output.start != seen:
                raise LawBroken(f"law 11: {output} comes when {seen} tokens were sent")
            self._num_outputs[output.request_id] += len(output.token_ids)
            self._logprobs_are_complete(output)
            embeds = self._submits[output.request_id].embeds
            if not (
                not (output.token_ids if embeds else output.embedding)
                and (not output.embedding or output.finish_reason is FinishReason.STOP)
            ):
                raise LawBroken(f"law 11: {output} of a request that {'embeds' if embeds else 'generates'}")
            if output.finish_reason is not None:
                self.ended[output.request_id] = output.finish_reason
        unfinished = {r.id for r in self.state.requests.values() if r.finish_reason is None}
        if unfinished != self._num_outputs.keys() - self.ended.keys():
            raise LawBroken(
                f"law 11: unfinished {unfinished}, without an end {self._num_outputs.keys() - self.ended.keys()}"
            )
        check_state(self.state)
        self._states.check(View(self.state))
        self._nothing_in_flight_is_free()
        self._pending_is_in_flight()
        return outputs

    def _pending_is_in_flight(self) -> None:
        """4, over plans in flight: a request's pending tokens are those that its rows in flight are to bring."""
        to_bring: Counter[int] = Counter()
        for plan, _ in self.in_flight:
            for chunk in plan.chunks:
                to_bring[chunk.request_id] += tokens_of_row(chunk)
        for request in self.state.requests.values():
            if request.pending != to_bring[request.id]:
                raise LawBroken(
                    f"law 4: request {request.id} has {request.pending} tokens pending,"
                    f" {to_bring[request.id]} are to come"
                )

    def _logprobs_are_complete(self, output: Output) -> None:
        """11, for log-probabilities: exactly the wanted ones are sent, the prompt's once each and before outputs."""
        submit = self._submits[output.request_id]
        sampling = submit.sampling
        scored = tuple(item.token_id for item in output.logprobs)
        if scored != (() if sampling.logprobs is None else output.token_ids):
            raise LawBroken(f"law 11: {output} has the logprobs of tokens {scored}")
        start = self._num_sent[output.request_id]
        end = self._num_sent[output.request_id] = start + len(output.prompt_logprobs)
        scored = tuple(item.token_id for item in output.prompt_logprobs)
        targets = () if sampling.prompt_logprobs is None else submit.prompt[1:]
        if not (scored == targets[start:end] and (end == len(targets) or not output.token_ids)):
            raise LawBroken(
                f"law 11: {output} has the logprobs of prompt tokens {scored} when {start} of {len(targets)} were sent"
            )

    def _preemptions_are_bounded(self) -> None:
        """12. No request is preempted for ever; under full reservation none is preempted for want of memory."""
        limits = self.scheduler.limits
        bound = 0 if limits.reserve == "full" else PROTECT_AFTER + limits.max_running_requests
        for request in self.state.requests.values():
            if request.preemptions > bound:
                raise LawBroken(
                    f"law 12: request {request.id} was preempted {request.preemptions} times, {bound} at most"
                )

    def _decodes_go_first(self, plan: BatchPlan, waiting: Collection[int]) -> None:
        """A mixed plan passes over a running request only for want of a page, in a pipeline until its turn comes, or
        if it is among those that wait to have drafts."""
        if self.scheduler.limits.schedule != "mixed" or self.scheduler.limits.pipeline_stages > 1:
            return
        planned = {chunk.request_id for chunk in plan.chunks}
        size = self.state.kv.page_size
        for request in self.state.decoding.values():
            ready = request.wants_chunk() and request.id not in waiting
            at_boundary = request.scheduled % size == 0 if not request.block_size else needs_page(request)
            if not (request.id in planned or not ready or (at_boundary and self.state.kv.available == 0)):
                raise LawBroken(f"decode first: plan {plan.step} passes over request {request.id}")

    def _chunks_tile(self, plan: BatchPlan) -> None:
        """8, over a run: a request's chunks follow each other without gap or overlap from its cached prefix on."""
        opened = {new.request_id for new in plan.new_slots}
        for each in plan.slices:
            request, before = self.state.requests[each.chunk.request_id], self._slices.pop(each.chunk.request_id, None)
            if request.id in opened:
                self._next_start[request.id] = request.cached
            if before is None:
                self._begun_in[request.id] = plan.step
                if each.first != 0:
                    raise LawBroken(f"law 8: {each} follows none")
            else:
                goes_on = before.chunk == each.chunk and before.stop == each.first < each.stop
                if not goes_on:
                    raise LawBroken(f"law 8: {each} follows {before}")
            opened.discard(request.id)
            start = self._next_start.get(request.id)
            if each.chunk.start != start:
                raise LawBroken(f"law 8: {each} should start at {start}")
            if each.completes:
                self._next_start[request.id] = each.chunk.end
            else:
                self._slices[request.id] = each
        for chunk in resident(plan):
            request = self.state.requests[chunk.request_id]
            expected = request.cached if chunk.request_id in opened else self._next_start.get(chunk.request_id)
            if chunk.start != expected:
                raise LawBroken(f"law 8: {chunk} should start at {expected}")
            self._next_start[chunk.request_id] = chunk.end
            opened.discard(chunk.request_id)
            if request.status is Status.WAITING:
                raise LawBroken(f"law 6: {chunk} of a request that waits")
        if opened:
            raise LawBroken(f"law 8: slots opened without a chunk: {opened}")

    def _slices_wait_for_their_blocks(self, plan: BatchPlan) -> None:
        """16. No work item is planned before its blocks were reported as loaded, where loads are reported."""
        for each in plan.slices:
            if each.base and self.state.kv.offload.limits.reports_loads:
                has_begun = each.chunk.request_id in self._slices
                ready = self._ready.get(self._begun_in[each.chunk.request_id], 0) if has_begun else 0
                if each.stop > ready:
                    raise LawBroken(f"law 16: {each} is planned when {ready} work items are ready")

    def _rows_follow(self, plan: BatchPlan) -> dict[int, tuple[int, ...]]:
        """5, over a run: the device's page table, rebuilt from the plans alone, has the pages of each request's lease.
        Returns the pages of each request in the plan."""
        for new in plan.new_slots:
            self._rows[new.slot] = []
            self._stored_rows[new.slot] = []
        rows: dict[int, tuple[int, ...]] = {}
        bases: dict[int, int] = {}
        for each in offloaded(plan):
            lease = self.state.requests[each.chunk.request_id].lease
            row = self._stored_rows[each.chunk.slot]
            row.extend(each.stored_pages)
            base = each.base // self.state.kv.page_size
            if not (
                isinstance(lease, OffloadLease) and row == lease.row[: len(row)] and base <= min(len(row), lease.stored)
            ):
                raise LawBroken(f"law 5: {each} leaves row {row}, host has {lease}")
            assert isinstance(lease, OffloadLease)
            end = self.state.kv.pages_for(each.chunk.end)
            if each.pages != lease.window_pages(base, end):
                raise LawBroken(f"law 5: {each} is not where {lease} has it")
            before = rows.get(each.chunk.request_id, ())  # of the chunk that this step completes
            rows[each.chunk.request_id] = (
                before + each.pages[len(before) and bases[each.chunk.request_id] + len(before) - base :]
            )
            bases.setdefault(each.chunk.request_id, base)
        of_layers = {each.chunk: each.new_pages for each in layered(plan)}
        for chunk in (*resident(plan), *of_layers):
            row = self._rows[chunk.slot]
            new_pages = of_layers.get(chunk, chunk.new_pages)
            first = self.state.kv.pages_for(chunk.end) - len(new_pages)
            if first > len(row):
                raise LawBroken(f"law 5: {chunk} has pages from {first} on for a row of {len(row)}")
            if new_pages:
                row[first:] = new_pages
            held = self.state.requests[chunk.request_id].lease
            is_right = isinstance(held, ResidentLease) and row[: len(held.pages)] == held.pages
            if not is_right:
                raise LawBroken(f"law 5: {chunk} leaves row {row}, host has {held}")
            rows[chunk.request_id] = tuple(row[: self.state.kv.pages_for(chunk.end)])
        return rows

    def _writes_are_undisturbed(self, plan: BatchPlan, rows: dict[int, tuple[int, ...]]) -> None:
        """9 and 10, over plans in flight: no row writes a page that a row of another request may be using."""
        size = self.state.kv.page_size
        bases = {each.chunk.request_id: each.base // size for each in reversed(plan.slices)}
        for chunk in (*resident(plan), *(each.chunk for each in plan.slices)):
            base = bases.get(chunk.request_id, 0)
            written = set(rows[chunk.request_id][chunk.start // size - base : -(-chunk.end // size) - base])
            for earlier, used in self.in_flight:
                for request_id, pages in used.items():
                    if not (request_id == chunk.request_id or written.isdisjoint(pages)):
                        raise LawBroken(
                            f"law 10: {chunk} writes {written} while request {request_id} of plan {earlier.step} runs"
                        )

    def _nothing_in_flight_is_free(self) -> None:
        """10. No page or slot of an uncommitted plan is free or belongs to another request."""
        self._windows.check(self.state)
        free = self.state.kv.pool.free_pages()
        holders = {request.slot: request.id for request in live(self.state)}
        for plan, rows in self.in_flight:
            for chunk in (*plan.chunks, *(each.chunk for each in plan.slices)):
                if holders.get(chunk.slot) != chunk.request_id:
                    raise LawBroken(
                        f"law 10: slot {chunk.slot} of plan {plan.step} in flight is held by {holders.get(chunk.slot)}"
                    )
            for request_id, pages in rows.items():
                if not free.isdisjoint(pages):
                    raise LawBroken(
                        f"law 10: pages {free & set(pages)} of request {request_id}, plan {plan.step} in flight,"
                        " are free"
                    )
