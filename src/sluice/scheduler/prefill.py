"""PrefillAdder: how much prefill one step takes, and of whom.

It answers for one step's budgets: tokens of the batch, tokens of prefill, slots and memory. It decides first, and
only then takes pages and a slot; a refusal changes nothing.
"""

from __future__ import annotations

from enum import Enum

from sluice.kv.manager import Lease
from sluice.scheduler.batch import BatchBuilder
from sluice.scheduler.request import Request
from sluice.scheduler.retract import make_room
from sluice.scheduler.state import SchedulerState
from sluice.types import SchedulerLimits


class AddResult(Enum):
    """What became of a request offered to the step."""

    CONTINUE = "taken; ask again with the next"
    NO_TOKEN = "no memory"
    OTHER = "a budget of this step is used up"


class PrefillAdder:
    """Packs prefill chunks into one step.

    With chunking a chunk is cut to what the budgets leave, down to whole pages; cut to nothing means "not this step".
    Without it a prompt goes whole, or not in this step; one that would not fit beside a full set of decodes goes as
    the only prefill of its step, over the budget, or it might never run.
    """

    def __init__(self, state: SchedulerState, limits: SchedulerLimits, batch: BatchBuilder) -> None:
        self._state = state
        self._batch = batch
        self._chunking = limits.chunked_prefill_size > 0
        self._prefill_tokens_left = limits.chunked_prefill_size if self._chunking else limits.max_batch_tokens
        self._batch_limit = limits.max_batch_tokens
        self._is_empty = True

    def add_partial(self, request: Request) -> AddResult:
        """The next chunk of a request whose prompt is half computed."""
        lease = request.lease
        assert lease is not None, f"request {request.id} is partial without pages"
        length = self._fit(request.extend_len)
        if length == 0:
            return AddResult.OTHER
        kv = self._state.kv
        if kv.missing(lease, request.scheduled + length) > kv.available:
            if request is self._state.oldest_running():
                make_room(self._state, [request])
            length = self._fit_memory(lease, request.scheduled, length)
            if length == 0:
                return AddResult.NO_TOKEN
        self._take(request, length)
        return AddResult.CONTINUE

    def add_one_req(self, request: Request) -> AddResult:
        """Admit a waiting request with its first chunk.

        Memory is checked for the whole of what the request has, cut or not, so that a prompt is not started that
        cannot be ended; once before the matched prefix is locked and again after, because locking it takes pages out
        of what can be evicted.
        """
        state, kv = self._state, self._state.kv
        if not state.free_slots or self._left() <= 0:
            return AddResult.OTHER
        path = kv.match(request.tokens, len(request.tokens) - 1, request.extra_key)
        cached = len(path) * kv.page_size
        length = self._fit(len(request.tokens) - cached)
        if length == 0:
            return AddResult.OTHER
        needed = kv.pages_for(len(request.tokens) + 1) - len(path) + self._reserved_pages()
        if needed > kv.available:
            return AddResult.NO_TOKEN
        lease = kv.acquire(path, request.extra_key)
        if needed > kv.available:
            kv.release(lease, request.tokens, cached)
            return AddResult.NO_TOKEN
        state.start(request)
        request.lease = lease
        request.cached = request.computed = request.scheduled = cached
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = cached
        self._batch.open_slot(request)
        self._take(request, length)
        return AddResult.CONTINUE

    def _left(self) -> int:
        return min(self._prefill_tokens_left, self._batch_limit - self._batch.num_tokens)

    def _fit(self, extend_len: int) -> int:
        """Tokens of `extend_len` that fit this step."""
        left = self._left()
        if extend_len <= left:
            return extend_len
        if not self._chunking:
            return extend_len if self._is_empty and extend_len > self._batch_limit - self._state.num_slots else 0
        return max(0, left - left % self._state.kv.page_size)

    def _fit_memory(self, lease: Lease, start: int, length: int) -> int:
        """Of a chunk that fits the budgets, the part for which there are pages. Chunks start on a page boundary."""
        kv = self._state.kv
        room = (len(lease.pages) + kv.available) * kv.page_size - start
        return length if length <= room else max(0, room)

    def _reserved_pages(self) -> int:
        """Pages spoken for: the rest of started prompts, and one page for each decode to go on."""
        kv = self._state.kv
        rest = sum(
            kv.missing(request.lease, len(request.tokens) + 1)
            for request in self._state.partial.values()
            if request.lease is not None
        )
        return rest + len(self._state.decoding)

    def _take(self, request: Request, length: int) -> None:
        self._batch.promise(request, length)
        self._prefill_tokens_left -= length
        self._is_empty = False
        if request.scheduled == request.prefill_end:
            self._state.prefilled(request)
