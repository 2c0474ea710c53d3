"""PrefillAdder: how much prefill one step takes, and of whom.

It answers for one step's budgets: tokens of the batch, of prefill, of one request, numbers of prompts, slots and
memory. It decides first, and only then takes pages and a slot; a refusal changes nothing. The first limit that cuts
or refuses something is the one that bound the step.
"""

from __future__ import annotations

from enum import Enum

from sluice.kv.manager import Lease
from sluice.kv.prefix import Node
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.budget import UNLIMITED, budget_for
from sluice.scheduler.offloading import is_offloaded
from sluice.scheduler.preempt import make_room, preempt_for
from sluice.scheduler.queue import cached_len
from sluice.scheduler.request import Request
from sluice.scheduler.state import SchedulerState
from sluice.types import Bound, SchedulerLimits


class AddResult(Enum):
    """What became of a request offered to the step."""

    CONTINUE = "taken; ask again with the next"
    NO_TOKEN = "no memory"
    NO_SLOT = "every slot is taken"
    OTHER = "a budget of this step is used up"


class PrefillAdder:
    """Packs prefill chunks into one step.

    With chunking a chunk is cut to what the budgets leave, down to whole pages; cut to nothing means "not this step".
    Without it a prompt goes whole, or not in this step; one that does not fit goes as the only prefill of its step,
    over the budget, or it might never run.
    """

    def __init__(self, state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder) -> None:
        self._state = state
        self._limits = limits
        self._batch = batch
        self._chunk = budget_for(limits.chunked_prefill_size, state.kv.page_size, limits.dynamic_chunking)
        self._offloaded = 0
        self._tier_is_full = False
        self._num_prompts = 0
        self._reserved: int | None = None
        self.bound_by = Bound.NOTHING

    def note(self, bound: Bound) -> None:
        """A limit kept something out of this step."""
        if self.bound_by is Bound.NOTHING:
            self.bound_by = bound

    def room(self) -> int:
        """Prefill tokens this step still takes, at the beginning of a prompt; none if it is not positive."""
        return self._room()[0]

    def share(self) -> None:
        """Whoever came first has its part: the others have theirs, however far into its prompt that one is."""
        self._chunk.share()

    def is_full(self) -> bool:
        """No prefill token is left, and the limit that says so is noted."""
        left, bound = self._room()
        if left <= 0:
            self.note(bound)
        return left <= 0

    def add_partial(self, request: Request, at_most: int = UNLIMITED) -> AddResult:
        """The next chunk of a request whose prompt is half computed.

        It goes by the pages there are, not by what is reserved: it is never skipped because others may need memory
        later, or what it holds would be held for ever.
        """
        lease = request.lease
        assert lease is not None, f"request {request.id} is partial without pages"
        length, cut_by = self._fit(request.scheduled, request.extend_len, at_most)
        if length == 0:
            self.note(cut_by)
            return AddResult.OTHER
        length = self._find_memory(request, lease, length)
        if length == 0:
            return AddResult.NO_TOKEN
        self.note(cut_by)
        self._take(request, length)
        return AddResult.CONTINUE

    def add_loaded(self, request: Request, at_most: int = UNLIMITED, *, may_cut: bool = True) -> AddResult:
        """The first chunk of a request whose prefix was loaded; whole, unless it may be cut and a partial prefill may
        start. It was admitted when its load began, so it goes by the pages there are."""
        lease = request.lease
        assert lease is not None and lease.load is None, f"request {request.id} is still loading"
        extend_len = request.extend_len
        length, cut_by = self._fit(request.scheduled, extend_len, at_most)
        if length == 0:
            self.note(cut_by)
            return AddResult.OTHER
        may_cut = may_cut and len(self._state.partial) < self._limits.max_partial_prefills
        if length == extend_len or may_cut:
            length = self._find_memory(request, lease, length)
            if length == 0:
                return AddResult.NO_TOKEN
        if length < extend_len and not may_cut:
            self.note(Bound.MAX_PARTIAL_PREFILLS)
            return AddResult.OTHER
        self.note(cut_by)
        self._state.begin(request)
        self._batch.open_slot(request)
        self._take(request, length)
        return AddResult.CONTINUE

    def needs(self, request: Request) -> int:
        """Pages that a waiting request is to have before it starts, beyond those it shares. Its path is up to date."""
        kv = self._state.kv
        if is_offloaded(kv, request):
            return kv.offload.limits.window_pages
        return kv.pages_for(self._state.reservation.tokens_at_admission(request)) - len(request.path)

    def start_load(self, request: Request, nodes: list[Node], ahead: int) -> bool:
        """Bring these nodes, which follow a waiting request's path, to the device for it, if there is memory for the
        whole of it and for `ahead` pages of others.

        Pages that copies from a disk are on their way to are out of reach until the disk has answered. So they may
        never be so many that the oldest running request, which gets what it needs by retracting others, would wait for
        them.
        """
        state, kv = self._state, self._state.kv
        needed = self.needs(request) + self._reserved_pages() + ahead
        if needed > kv.available or not self._fits_beside_loads(request, len(nodes)):
            self.note(Bound.KV_PAGES)
            return False
        lease = kv.acquire(request.path, request.extra_key)
        if needed > kv.available:
            self.note(Bound.KV_PAGES)
            kv.release(lease, request.tokens, len(request.path) * kv.page_size)
            return False
        kv.load(lease, nodes)
        state.load(request, lease)
        self._reserved = None
        return True

    def add_one_req(self, request: Request, at_most: int, *, may_cut: bool) -> AddResult:
        """Admit a waiting request with its first chunk; whole, unless it may be cut and a partial prefill may start.

        Memory is checked for the whole of the request, cut or not, so that a prompt is not started that cannot be
        ended; once before the matched prefix is locked and again after, because locking it takes pages out of what
        can be evicted.
        """
        state, kv = self._state, self._state.kv
        if not state.free_slots:
            self.note(Bound.MAX_RUNNING_REQUESTS)
            return AddResult.NO_SLOT
        if is_offloaded(kv, request):
            return self._add_offloaded(request)
        cached = cached_len(kv, request)
        extend_len = len(request.tokens) - cached
        length, cut_by = self._fit(cached, extend_len, at_most)
        if length == 0:
            self.note(cut_by)
            return AddResult.OTHER
        may_cut = may_cut and len(state.partial) < self._limits.max_partial_prefills
        if length < extend_len and not may_cut:
            self.note(Bound.MAX_PARTIAL_PREFILLS)
            return AddResult.OTHER
        needed = self.needs(request) + self._reserved_pages()
        if needed > kv.available or not self._fits_beside_loads(request):
            self.note(Bound.KV_PAGES)
            return AddResult.NO_TOKEN
        lease = kv.acquire(request.path, request.extra_key)
        if needed > kv.available:
            self.note(Bound.KV_PAGES)
            kv.release(lease, request.tokens, len(request.path) * kv.page_size)
            return AddResult.NO_TOKEN
        self.note(cut_by)
        state.start(request, lease)
        self._batch.open_slot(request)
        self._take(request, length, is_new=True)
        return AddResult.CONTINUE

    def spend(self, tokens: int) -> None:
        """Offloaded work costs the step as much as so many tokens of prefill would."""
        if tokens:
            self._chunk.take(0, tokens)
        self._offloaded += tokens

    def _add_offloaded(self, request: Request) -> AddResult:
        """Admit a request whose context is longer than the device, with all the memory it will ever have. Those that
        wait for others of their kind to end keep nobody else waiting but each other: what they wait for is used by no
        others."""
        state, kv = self._state, self._state.kv
        if not kv.offload.has_window:
            self.note(Bound.KV_PAGES)
            return AddResult.CONTINUE
        needed = self.needs(request) + self._reserved_pages()
        if needed > kv.available or not self._fits_beside_loads(request, self.needs(request)):
            self.note(Bound.KV_PAGES)
            return AddResult.NO_TOKEN
        num_tokens = request.prompt_len + request.max_tokens
        lease = None
        if not self._tier_is_full:
            lease = kv.open_offloaded(request.tokens, request.cacheable, num_tokens, request.extra_key)
        if lease is None:
            self._tier_is_full = True
            self.note(Bound.TIER_PAGES)
            return AddResult.CONTINUE
        state.start_offloaded(request, lease)
        return AddResult.CONTINUE

    def admit(self, request: Request, at_most: int = UNLIMITED, *, may_cut: bool = True) -> AddResult:
        """`add_one_req`, and where priorities may preempt, lower ones are sent back for it as long as that helps."""
        result = self.add_one_req(request, at_most, may_cut=may_cut)
        while (
            self._limits.priority_preemption
            and result in (AddResult.NO_TOKEN, AddResult.NO_SLOT)
            and preempt_for(self._state, request)
        ):
            self._reserved = None
            result = self.add_one_req(request, at_most, may_cut=may_cut)
        return result

    def _room(self, start: int = 0) -> tuple[int, Bound]:
        """What the tightest budget leaves for tokens from position `start` on, and which it is."""
        used = self._batch.num_tokens + self._offloaded
        left, bound = self._chunk.left(start), Bound.CHUNKED_PREFILL_SIZE
        if self._limits.max_prefill_tokens:
            # Decodes come off this budget too. However many run, a step's first prompt may have a page: it is a
            # budget of admission, and none of it would be starvation.
            floor = 0 if self._num_prompts else self._state.kv.page_size
            prefill_left = max(floor, self._limits.max_prefill_tokens - used)
            if prefill_left < left:
                left, bound = prefill_left, Bound.MAX_PREFILL_TOKENS
        if self._limits.max_batch_tokens - used < left:
            left, bound = self._limits.max_batch_tokens - used, Bound.MAX_BATCH_TOKENS
        return left, bound

    def _fit(self, start: int, extend_len: int, at_most: int) -> tuple[int, Bound]:
        """Tokens of the `extend_len` from position `start` on that this step's budgets let in (0 is "not this step"),
        and what cuts them.

        Args:
            at_most: a share of the step: of tokens as they cost at the beginning of a prompt.
        """
        limits = self._limits
        if limits.max_prefill_requests and self._num_prompts >= limits.max_prefill_requests:
            return 0, Bound.MAX_PREFILL_REQUESTS
        left, bound = self._room(start)
        if not limits.chunked_prefill_size:
            if extend_len <= left or self._num_prompts == 0:
                return extend_len, Bound.NOTHING
            return 0, bound
        if left < extend_len and self._is_left_whole(extend_len):
            return 0, Bound.MAX_PREFILL_TOKENS
        wanted, cut_by = self._chunk.tokens_at_depth(at_most, start), Bound.NOTHING
        if limits.long_prefill_token_threshold and wanted >= limits.long_prefill_token_threshold:
            wanted, cut_by = limits.long_prefill_token_threshold, Bound.LONG_PREFILL_TOKEN_THRESHOLD
        if left <= wanted:
            wanted, cut_by = left, bound
        if wanted >= extend_len:
            return extend_len, Bound.NOTHING
        return max(0, wanted - wanted % self._state.kv.page_size), cut_by

    def _is_left_whole(self, extend_len: int) -> bool:
        """With a prefill budget, a prompt that would reach it is not cut behind others: it waits to be the first."""
        if not self._limits.max_prefill_tokens or self._num_prompts == 0:
            return False
        return extend_len >= self._limits.max_prefill_tokens - self._batch.num_tokens

    def _fits_beside_loads(self, newcomer: Request, to_load: int = 0) -> bool:
        """Everybody who has started, and the newcomer, could have all it may ever need but for the pages that are being
        loaded for others, and for those that offloaded requests keep."""
        state, kv = self._state, self._state.kv
        loading = kv.tiers.num_loading + kv.num_window_pages + to_load
        if not loading:
            return True
        own = {request.id: len(r.load.pages) for request in state.loading.values() if (r := request.lease) and r.load}
        resident = [*state.started()]
        if not is_offloaded(kv, newcomer):
            own[newcomer.id] = to_load
            resident.append(newcomer)
        return all(
            kv.pages_for(request.prompt_len + request.max_tokens) + loading - own.get(request.id, 0) <= kv.num_pages
            for request in resident
        )

    def _find_memory(self, request: Request, lease: Lease, length: int) -> int:
        """Of a chunk that fits the budgets, the part for which there are pages. For the oldest others are retracted."""
        kv = self._state.kv
        if kv.missing(lease, request.scheduled + length) <= kv.available:
            return length
        self.note(Bound.KV_PAGES)
        if request is self._state.oldest_running():
            make_room(self._state, [request])
            self._reserved = None
        return self._fit_memory(lease, request.scheduled, length)

    def _fit_memory(self, lease: Lease, start: int, length: int) -> int:
        """Of a chunk that fits the budgets, the part for which there are pages. Chunks start on a page boundary."""
        kv = self._state.kv
        room = (len(lease.pages) + kv.available) * kv.page_size - start
        return length if length <= room else max(0, room)

    def _reserved_pages(self) -> int:
        """Pages spoken for by running requests beyond those they hold. Summed once a step, then kept up to date."""
        if self._reserved is None:
            self._reserved = sum(self._lacks(request) for request in self._state.started())
        return self._reserved

    def _lacks(self, request: Request) -> int:
        assert request.lease is not None, f"request {request.id} runs without pages"
        return self._state.kv.missing(request.lease, self._state.reservation.tokens(request))

    def _take(self, request: Request, length: int, *, is_new: bool = False) -> None:
        before = 0 if is_new else self._lacks(request)
        self._batch.promise(request, length)
        self._chunk.take(request.scheduled - length, length)
        self._num_prompts += 1
        request.planned_at = self._state.step
        if request.scheduled == request.prefill_end:
            self._state.prefilled(request)
        if self._reserved is not None:
            self._reserved += self._lacks(request) - before
