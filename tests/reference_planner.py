"""A second planner, written from the rules of SGLang and Sarathi alone, and not from the scheduler's code.

It plans synchronous steps, one in flight, of requests whose memory is reserved when they are admitted, so that none is
preempted. `tests/prior_art` shows the rules one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from sluice.types import Output, SchedulerLimits, Submit

Shape = tuple[int, int, int]
"""(request, start, length) of a chunk."""


@dataclass(eq=False)
class Planned:
    """A request with its tokens so far; the first `computed` are computed, or were found in the cache."""

    submit: Submit
    tokens: list[int]
    computed: int = 0

    @property
    def decodes(self) -> bool:
        return self.computed >= len(self.submit.prompt)


@dataclass
class ReferencePlanner:
    """Plans steps from the calls that a scheduler gets. With caching, no page is ever evicted."""

    limits: SchedulerLimits
    num_pages: int
    page_size: int
    caching: bool
    waiting: list[Planned] = field(default_factory=list)
    running: list[Planned] = field(default_factory=list)
    cache: set[tuple[str, Sequence[int]]] = field(default_factory=set)
    """Whole pages from the beginning of a prompt, by namespace."""

    def add(self, submit: Submit) -> None:
        self.waiting.append(Planned(submit, list(submit.prompt)))

    def plan(self) -> list[Shape]:
        decodes = [(request.submit.request_id, request.computed, 1) for request in self.running if request.decodes]
        if self.limits.schedule == "mixed":  # as Sarathi: decodes, then the started prompt, then new ones
            return [*decodes, *self.prefill(len(decodes))]
        return [*self.prefill(0)] or decodes

    def commit(self, plan: Sequence[Shape], outputs: Sequence[Output]) -> None:
        running = {request.submit.request_id: request for request in self.running}
        for request_id, start, length in plan:
            request = running[request_id]
            request.computed = start + length
            if self.caching:  # whole pages are shared as soon as they are computed
                self.cache.update(self.beginning(request, page) for page in range(1, self.pages(request.computed + 1)))
        for output in outputs:
            running[output.request_id].tokens += output.token_ids
            if output.finish_reason is not None:
                self.end(output.request_id)

    def end(self, request_id: int) -> None:
        for requests in (self.waiting, self.running):
            requests[:] = [request for request in requests if request.submit.request_id != request_id]

    def prefill(self, used: int) -> Iterator[Shape]:
        """Yield the prompts of a step that holds `used` tokens already."""
        budget, prompts = self.limits.chunked_prefill_size or inf, 0  # of the step, not of one request
        started = [request for request in self.running if not request.decodes]  # one at most, and it goes first
        for request in [*started, *self.in_order()]:
            if request not in started:
                request.computed = self.found(request)
                if self.is_follower(request):
                    continue
                if not self.has_room(request):
                    return
            extend = len(request.tokens) - request.computed
            length = self.cut(extend, budget, used, prompts)
            if length == 0:
                return
            if request not in started:
                self.waiting.remove(request)
                self.running.append(request)
            yield request.submit.request_id, request.computed, length
            budget, used, prompts = budget - length, used + length, prompts + 1
            if length < extend:
                return  # nothing behind one that is cut

    def cut(self, extend: int, budget: float, used: int, prompts: int) -> int:
        """Return how many of `extend` tokens the step takes, 0 for "not now"."""
        limits = self.limits
        if limits.max_prefill_requests and prompts >= limits.max_prefill_requests:
            return 0
        left = limits.max_prefill_tokens - used if limits.max_prefill_tokens else inf
        room = self.room(budget, used, prompts)
        if extend <= room:
            return extend
        if self.ends(extend, budget) and extend <= self.room(inf, used, prompts):
            return extend
        if not limits.chunked_prefill_size:
            return 0 if prompts else extend  # a first prompt over the budget goes alone
        if prompts and extend >= left:  # not cut behind others
            return 0
        return max(0, int(room) // self.page_size * self.page_size)

    def room(self, budget: float, used: int, prompts: int) -> float:
        """Return the tightest of a chunk's budgets. However many decode, the first prompt of a step may have a page."""
        left = self.limits.max_prefill_tokens - used if self.limits.max_prefill_tokens else inf
        return min(budget, self.limits.max_batch_tokens - used, left if prompts else max(left, self.page_size))

    def ends(self, extend: int, budget: float) -> bool:
        """Whether a prompt ends although it exceeds the chunk: by a page, rather than leave a tail. A rule of ours."""
        return self.page_size <= budget and extend - budget <= self.page_size

    def in_order(self) -> list[Planned]:
        key = {
            "fcfs": lambda request: 0,
            "priority": lambda request: -request.submit.priority,
            "lpm": lambda request: -self.found(request),
        }[self.limits.policy]
        return sorted(self.waiting, key=key)

    def has_room(self, request: Planned) -> bool:
        """A slot, and pages for the whole prompt and output, even if the prompt will be cut."""
        reserved = sum(map(self.need, self.running)) + self.need(request)
        return len(self.running) < self.limits.max_running_requests and reserved <= self.num_pages

    def need(self, request: Planned) -> int:
        return self.pages(len(request.submit.prompt) + (request.submit.sampling.max_tokens or 0))

    def found(self, request: Planned) -> int:
        """Tokens of the longest cached prefix of whole pages; the last token is computed in any case."""
        count = 0
        while (count + 1) * self.page_size < len(request.tokens) and self.beginning(request, count + 1) in self.cache:
            count += 1
        return count * self.page_size

    def is_follower(self, request: Planned) -> bool:
        """Whether a prompt that is being computed brings the next page of a waiting one (prefix dedup)."""
        page = request.computed // self.page_size + 1
        return (
            self.caching
            and page * self.page_size < len(request.tokens)
            and any(
                not other.decodes and self.beginning(other, page) == self.beginning(request, page)
                for other in self.running
            )
        )

    def beginning(self, request: Planned, pages: int) -> tuple[str, Sequence[int]]:
        return request.submit.extra_key, tuple(request.tokens[: pages * self.page_size])

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
