"""PrefillAdder: how much prefill one step takes.

It keeps the budgets of one step: tokens of the batch, of prefill and of one request, numbers of prompts, and memory. It
decides first and takes pages afterwards; a refusal changes nothing. The first limit that cuts or refuses something is
the one that bound the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from sluice.kv.manager import ResidentLease
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED, ChunkBudget, budget_for
from sluice.scheduler.layer_budget import LayerBudget
from sluice.scheduler.preempt import make_room
from sluice.scheduler.request import Request, Status
from sluice.scheduler.reserved_pages import ReservedPages
from sluice.scheduler.state import SchedulerState
from sluice.types import Bound, OffloadLimits, PredictedStep, SchedulerLimits


class AddResult(Enum):
    """What became of a request that was offered to the step."""

    CONTINUE = "taken; ask again with the next"
    NO_TOKEN = "no memory"
    NO_SLOT = "every slot is taken"
    OTHER = "a budget of this step is used up"


class PrefillAdder:
    """Packs prefill chunks into one step.

    With chunking, a chunk is cut to what the budgets leave, down to whole pages; cut to nothing means "not this step".
    Without it, a prompt goes whole or not in this step. One that does not fit goes as the only prefill of its step,
    over the budget; else it might never run.
    """

    def __init__(self, state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder) -> None:
        self.state = state
        self.limits = limits
        self._batch = batch
        self._timed = None if state.pacer is None else state.pacer.budget(batch, limits, state.streams())
        self._chunk: ChunkBudget
        if self._timed is not None:
            self._chunk = self._timed
        elif state.sizer is not None:
            self._chunk = state.sizer.budget(batch)
        else:
            smoothing = limits.dynamic_chunking_smoothing
            page_size, doubles_at = state.kv.page_size, limits.dynamic_chunking
            self._chunk = budget_for(limits.chunked_prefill_size, page_size, doubles_at, smoothing)
        self._offloaded = 0
        """Tokens that slices of chunks cost the step."""
        self._planned: dict[int, int] = {}
        """Request -> tokens of its prompt in this step, or of those that a grammar forced."""
        self._with_layers: set[int] = set()
        """Requests with layers of a chunk in this step."""
        self._num_forced = 0
        """Requests among them that stream and have forced tokens."""
        self._are_forced = False
        """Forced tokens are being planned."""
        self._is_first = True
        """The step has no prompt yet; while forced tokens are planned, none of these."""
        divides = self._timed is not None and limits.sliced_chunk_size > 0
        self._layers = LayerBudget(self._timed, limits) if self._timed is not None and divides else None
        """Divides chunks among steps; None: none is."""
        self.reserved = ReservedPages(state)
        self.tier_is_full = False
        """The tier had no room for an offloaded request in this step."""
        self.bound_by = Bound.NOTHING

    @property
    def quantum(self) -> int:
        """The fewest tokens that a share of the step is worth."""
        return self._chunk.quantum

    def note(self, bound: Bound) -> None:
        """Note that a limit kept something out of this step."""
        if self.bound_by is Bound.NOTHING:
            self.bound_by = bound

    def room(self) -> int:
        """Return the prefill tokens that this step still takes at the beginning of a prompt, 0 or less if none."""
        return self._room()[0]

    def share(self) -> None:
        """Leave half of the step to the other prompts, however far into its prompt the first one is."""
        self._chunk.share()

    def spend(self, tokens: int) -> None:
        """Count offloaded work, which costs the step as much as so many tokens of prefill."""
        if tokens:
            self._chunk.take(0, tokens)
        self._offloaded += tokens

    def pace(self) -> PredictedStep | None:
        """Return how long the step is expected to take, if there is an ITL target, and note that it was planned."""
        if self.state.sizer is not None:
            self.state.sizer.planned(self.state.step, self._batch)
        return None if self._timed is None else self._timed.pace(self.state.step)

    def offload_limits(self) -> OffloadLimits:
        """Return the limits of offloaded work. Where steps have a target, their costs are those that were measured."""
        limits = self.state.kv.offload.limits
        return limits if self._timed is None else self._timed.priced(limits, self.state.kv.page_size)

    def room_for_drafts(self) -> int:
        """Return the drafts that this step takes, 0 or less if none.

        With an ITL target, as many as keep the step within it, before prompts, for which half of the time is left.
        Without one, beside prompts as many as the step could have tokens of prompts more: it is no longer than with a
        whole chunk, so streams wait no longer for their next tokens than without drafts.
        """
        left = self.limits.max_batch_tokens - self._batch.num_tokens
        if self._timed is not None:
            return min(left, self._room_to_target(left))
        if len(self._batch.rows) == self._batch.num_decodes:
            return left
        return min(left, self._chunk.left(0)) if self.limits.chunked_prefill_size else 0

    def is_full(self) -> bool:
        """Return whether no prefill token is left, and note the limit that says so."""
        left, bound = self._room()
        if left <= 0:
            self.note(bound)
        return left <= 0

    def add_partial(self, request: Request, at_most: int = UNLIMITED) -> AddResult:
        """Add the next chunk of a request whose prompt is half computed, or lengthen the one that the step holds.

        It goes by the pages there are, not by what is reserved. A half-computed prompt is never skipped because others
        may need memory later, or its pages would be held for ever. If its chunk is sliced, the step gets more layers.
        """
        if request.sliced is not None:
            return self._add_layers(request, at_most)
        if request.id in self._with_layers:  # its chunk is complete, and its next one begins in another step
            return AddResult.OTHER
        length, cut_by = self.fit(request.scheduled, request.extend_len, at_most, self._planned.get(request.id, 0))
        if length == 0:
            self.note(cut_by)
            return AddResult.OTHER
        length = self._find_pages(request, length)
        if length == 0:
            return AddResult.NO_TOKEN
        self.note(cut_by)
        self._take(request, length, at_most)
        return AddResult.CONTINUE

    def add_forced(self, requests: Sequence[Request]) -> None:
        """Add the tokens that grammars forced, before any prompt. They use up the budgets, but they are no prompts: the
        first prompt behind them is still the first of its step, so that no number of streams keeps it waiting."""
        self._are_forced = True
        for request in requests:
            if request.status is Status.FORCED:  # it may have been preempted for the one before
                self.add_partial(request)
        self._are_forced = False
        self._chunk.end_forced()
        self._is_first = True

    def add_loaded(self, request: Request, at_most: int = UNLIMITED, *, may_cut: bool = True) -> AddResult:
        """Add the first chunk of a request whose prefix was loaded. It goes by the pages there are, since the request
        was admitted when its load began.

        Args:
            may_cut: whether the chunk may be less than all that is to be computed, if one more prompt may be half
                computed.
        """
        extend_len = request.extend_len
        length, cut_by = self.fit(request.scheduled, extend_len, at_most)
        if length == 0:
            self.note(cut_by)
            return AddResult.OTHER
        may_cut = may_cut and self.state.places_taken(request) < self.limits.max_partial_prefills
        if may_cut or not self.leaves_it_partial(request.scheduled, length, extend_len):
            length = self._find_pages(request, length)
            if length == 0:
                return AddResult.NO_TOKEN
        if not may_cut and self.leaves_it_partial(request.scheduled, length, extend_len):
            self.note(Bound.MAX_PARTIAL_PREFILLS)
            return AddResult.OTHER
        self.note(cut_by)
        self.state.begin(request)
        self.add_first(request, length, at_most)
        return AddResult.CONTINUE

    def add_first(self, request: Request, length: int, at_most: int, *, is_new: bool = False) -> None:
        """Add the first chunk of a request that has just been started.

        Args:
            length: tokens, for which there are pages.
            at_most: as of `fit`.
            is_new: whether nothing is reserved for the request yet.
        """
        self._batch.open_slot(request)
        self._take(request, length, at_most, is_new=is_new)

    def leaves_it_partial(self, start: int, length: int, extend_len: int) -> bool:
        """Return whether a prompt is half computed after a step with its next chunk.

        Args:
            start: position of its first token.
            length: tokens, as `fit` returned.
            extend_len: tokens of the prompt from there.
        """
        return length < extend_len or self._is_sliced(start, length)

    def computes_layers_of(self, request: Request) -> bool:
        """Return whether this step, or one before and one behind it, computes layers of a request's chunk."""
        return request.sliced is not None or request.id in self._with_layers

    def has_room_for_others(self, first: Request) -> bool:
        """Return whether a step that goes on with the first prompt has as much left for others."""
        if first.sliced is None or self._layers is None:
            return self.room() >= 2 * self.quantum
        return self._layers.has_room_for_others(first.sliced.chunk)

    def fit(self, start: int, extend_len: int, at_most: int, planned: int = 0) -> tuple[int, Bound]:
        """Cut a chunk to the budgets of this step.

        Args:
            start: position of its first token.
            extend_len: tokens that are wanted.
            at_most: a share of the step, in tokens as they cost at the beginning of a prompt.
            planned: tokens before `start` that this step computes; the chunk lengthens theirs.

        Returns:
            The tokens that fit, 0 meaning "not this step", and what cuts them.
        """
        limits = self.limits
        if limits.max_prefill_requests and not planned and self._num_prompts >= limits.max_prefill_requests:
            return 0, Bound.MAX_PREFILL_REQUESTS
        left, bound = self._room(start)
        if limits.prefills_by_block and extend_len > limits.block_size:
            fits = not planned and left >= limits.block_size
            return limits.block_size if fits else 0, Bound.CHUNKED_PREFILL_SIZE if fits or planned else bound
        if not limits.chunked_prefill_size:
            if extend_len <= left or self._is_first:
                return extend_len, Bound.NOTHING
            return 0, bound
        if left < extend_len and not planned and self._is_left_whole(extend_len):
            return 0, Bound.MAX_PREFILL_TOKENS
        wanted, cut_by = self._chunk.tokens_at_depth(at_most, start), Bound.NOTHING
        if limits.long_prefill_token_threshold and planned + wanted >= limits.long_prefill_token_threshold:
            wanted = limits.long_prefill_token_threshold - planned
            cut_by = Bound.LONG_PREFILL_TOKEN_THRESHOLD
        if left <= wanted:
            wanted, cut_by = left, bound
        if wanted >= extend_len or (
            cut_by is Bound.CHUNKED_PREFILL_SIZE and self._may_overshoot(start, extend_len, planned)
        ):
            return extend_len, Bound.NOTHING
        if self._layers is not None and not planned and not self._are_forced:
            most = self._room_beside_chunk()[0]
            length = self._layers.length(start, extend_len, at_most, most, is_first=self._is_first)
            if length is not None:
                return length, Bound.ITL_TARGET
        return max(0, self._chunk.cut(start, wanted)), cut_by

    def _is_sliced(self, start: int, length: int) -> bool:
        """Return whether a chunk is more than this step holds."""
        return self._layers is not None and not self._are_forced and self._layers.divides(start, length)

    def _add_layers(self, request: Request, at_most: int = UNLIMITED) -> AddResult:
        """Add layers of a request's open chunk: as many as fit, and one at least for the first prompt of the step."""
        if request.id not in self._planned and 0 < self.limits.max_prefill_requests <= self._num_prompts:
            self.note(Bound.MAX_PREFILL_REQUESTS)
            return AddResult.OTHER
        before = self.reserved.of(request)
        if not self._take_layers(request, at_most, least=int(self._is_first)):
            return AddResult.OTHER
        self.reserved.changed(request, before)  # with its last layer, more of its output is reserved
        return AddResult.CONTINUE

    def _take_layers(self, request: Request, at_most: int, *, least: int) -> int:
        """Plan the next layers of a request's open chunk: `least`, or as many as fit, of one round. Return how many."""
        sliced = request.sliced
        assert sliced is not None and self._layers is not None, f"request {request.id} has no open chunk"
        chunk, items = sliced.chunk, self.limits.layer_items(sliced.chunk.length)
        left = items.end_of_round(sliced.planned - (request.id in self._with_layers)) - sliced.planned
        count = self._layers.layers(chunk, left, at_most, self._room_beside_chunk()[0], least=least) if left else 0
        if count < left:
            self.note(Bound.ITL_TARGET)
        if not count:
            return 0
        self._batch.add_layers(request, count, items.total)
        self._offloaded += self._layers.take(chunk, count)
        self._is_first = False
        self._planned.setdefault(request.id, 0)
        self._with_layers.add(request.id)
        request.planned_at = self.state.step
        if request.scheduled == request.prefill_end:
            self.state.prefilled(request)
        return count

    @property
    def _num_prompts(self) -> int:
        return len(self._planned) - self._num_forced

    def _room_to_target(self, left: int) -> int:
        """Return the drafts that a step with an ITL target takes before prompts.

        Args:
            left: tokens of the batch that decodes leave.
        """
        assert self._timed is not None, "no target"
        state, beside_prompts = self.state, False
        if self.limits.schedule == "mixed":  # else a step of decodes has no prompts
            started = state.partial or state.forced or state.loading or state.offloaded
            beside_prompts = bool(started or (state.waiting and state.free_slots))
        room = self._timed.room_for_drafts(beside_prompts=beside_prompts)
        return min(room, left - self.limits.chunked_prefill_size) if beside_prompts else room

    def _room(self, start: int = 0) -> tuple[int, Bound]:
        """Return what the tightest budget leaves for tokens from position `start` on, and which budget it is."""
        of_chunk = self._chunk.left(start)
        left, bound = self._room_beside_chunk()
        return (left, bound) if left < of_chunk else (of_chunk, self._chunk.bound)

    def _room_beside_chunk(self) -> tuple[int, Bound]:
        """Return what the budgets leave that no chunk exceeds, and which one is the tightest."""
        used = self._batch.num_tokens + self._offloaded
        left, bound = self.limits.max_batch_tokens - used, Bound.MAX_BATCH_TOKENS
        if self.limits.max_prefill_tokens:
            # Decodes come off this budget too, but not drafts. However many run, a step's first prompt may have a page:
            # it is a budget of admission, and none of it would be starvation.
            floor = self.state.kv.page_size if self._is_first else 0
            used -= self._batch.num_drafts
            of_prefill = max(floor, self.limits.max_prefill_tokens - used)
            if of_prefill <= left:
                left, bound = of_prefill, Bound.MAX_PREFILL_TOKENS
        return left, bound

    def _may_overshoot(self, start: int, extend_len: int, planned: int) -> bool:
        """Return whether the last chunk of a prompt may exceed what the chunk size leaves.

        It may rather than leave a tail that costs its request another step, within all other budgets. This is the one
        place where a step exceeds its chunk size; by how much is for `ChunkBudget.left_to_last` to say.

        Args:
            start: position of its first token.
            extend_len: its tokens.
            planned: tokens of the same prompt that the step holds already.
        """
        threshold = self.limits.long_prefill_token_threshold
        leaves_a_tail = planned > 0 or self._chunk.cut(start, self._chunk.left(start)) > 0
        return (
            leaves_a_tail
            and extend_len <= self._chunk.left_to_last(start)
            and extend_len <= self._room_beside_chunk()[0]
            and (not threshold or planned + extend_len <= threshold)
        )

    def _is_left_whole(self, extend_len: int) -> bool:
        """Return whether a prompt waits to be the first of a step: with a prefill budget, one that would reach it is
        not cut behind others."""
        if not self.limits.max_prefill_tokens or self._is_first:
            return False
        used = self._batch.num_tokens - self._batch.num_drafts
        return extend_len >= self.limits.max_prefill_tokens - used

    def _find_pages(self, request: Request, length: int) -> int:
        """Return the part of a chunk that fits the budgets for which there are pages. For the oldest running request
        others are preempted, but not to lengthen a chunk. Chunks start on a page boundary."""
        lease, kv = request.lease, self.state.kv
        assert isinstance(lease, ResidentLease) and lease.load is None, f"request {request.id} is not resident: {lease}"
        if lease.missing(request.scheduled + length) <= kv.available:
            return length
        self.note(Bound.KV_PAGES)
        if request is self.state.oldest_running() and request.id not in self._planned:
            make_room(self.state, [request])
            self.reserved.recount()
        start = request.scheduled
        room = lease.capacity + kv.available * kv.page_size - start
        # Cut, it is not the last chunk of its prompt, which alone may exceed the chunk size.
        return length if length <= room else max(0, self._chunk.cut(start, min(room, self._room(start)[0])))

    def _take(self, request: Request, length: int, at_most: int, *, is_new: bool = False) -> None:
        before = 0 if is_new else self.reserved.of(request)
        planned = self._planned.get(request.id, 0)
        if not planned and self._is_sliced(request.scheduled, length):
            self._batch.open_chunk(request, length)
            self._take_layers(request, at_most, least=1)
            self.reserved.changed(request, before)
            return
        if planned:
            self._batch.lengthen(request, length)
        else:
            self._batch.promise(request, length)
            self._num_forced += request.status is Status.FORCED
        self._is_first = False
        self._planned[request.id] = planned + length
        self._chunk.take(request.scheduled + request.drafts - length, length)
        request.planned_at = self.state.step
        if request.scheduled == request.prefill_end:
            self.state.prefilled(request)
        self.reserved.changed(request, before)
