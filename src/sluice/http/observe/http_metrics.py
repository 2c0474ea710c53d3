"""What the server counts for `GET /metrics`: requests, tokens and their times as clients see them.

`Metrics` watches what the engine's client sends and receives, so it sees the requests of every route.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.engine.meter import REQUEST_SECONDS, Histogram
from sluice.http.base.calls import CALL, Call
from sluice.http.observe.loop_watchdog import PauseLog
from sluice.process.observer import Observer
from sluice.types import FinishReason, Output, PriorityClass, Submit, Tier

TO_FIRST_SECONDS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
BETWEEN_SECONDS: tuple[float, ...] = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
PER_ROW: tuple[float, ...] = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
TOKENS: tuple[float, ...] = tuple(mantissa * 10**power for power in range(7) for mantissa in (1, 2, 5))


@dataclass(slots=True)
class _Samples:
    """The samples of one prompt."""

    left: int
    """Samples that have not ended."""
    most_tokens: int = 0
    """Output tokens of the longest sample that has ended."""


@dataclass(slots=True)
class _Open:
    """A request whose end has not been seen."""

    arrived: float
    prompt_tokens: int
    call: Call | None
    samples: _Samples
    priority_class: str
    output_tokens: int = 0
    rows: int = 0
    """Rows that had drafts."""
    accepted: int = 0
    """Drafts of these rows that were right."""
    first: float = 0.0
    last: float = 0.0


class Metrics(Observer):
    """Counts for as long as the server lives, whichever engine serves. It is a `calls.Listener` as well.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: dict[int, _Open] = {}
        self._samples: dict[int, _Samples] = {}
        """Samples of the latest prompt of each call, by the call's `id`. A call submits its requests in their order,
        but perhaps in parts, between which others submit theirs."""
        self.model = ""
        """The model's name in the API, once it is known."""
        self.classes: tuple[PriorityClass, ...] = ()
        """Priority classes of the engine, once they are known."""
        self.first_tokens: Counter[tuple[str, bool]] = Counter()
        """First tokens and embeddings by class, and whether they came within its TTFT target."""
        self.prompt_tokens = 0
        self.cached_by_tier = dict.fromkeys(Tier, 0)
        """Prompt tokens found in the cache, by the tier where they were."""
        self.generation_tokens = 0
        self.cached_requests = 0
        """Requests with a beginning of their prompt in the cache."""
        self.finished: Counter[FinishReason] = Counter()
        self.http: Counter[tuple[str, str, int]] = Counter()
        """Calls by handler, method and status, as in `Call`."""
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)
        self.longest_outputs = Histogram(TOKENS)
        """Output tokens of the longest of each prompt's samples."""
        self.max_tokens = Histogram(TOKENS)
        self.to_first = Histogram(TO_FIRST_SECONDS)
        self.between = Histogram(BETWEEN_SECONDS)
        """Seconds between the tokens of a request; of tokens that came together the later ones count as 0 s."""
        self.per_token = Histogram(BETWEEN_SECONDS)
        """Mean seconds between the tokens of each request."""
        self.to_end = Histogram(REQUEST_SECONDS)
        self.acceptance_length = Histogram(PER_ROW)
        """Tokens that a row with drafts brought: the mean of each request."""
        self.pauses = PauseLog()
        """Pauses of the event loop."""

    @property
    def num_open(self) -> int:
        """Requests that are being timed."""
        return len(self._open)

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached_by_tier.values())

    def submitted(self, request: Submit) -> None:
        call, prompt_tokens = CALL.get(), len(request.prompt)
        # A call's time begins before its prompt is tokenized.
        arrived = self._clock() if call is None else call.began
        if request.sample_index == 0:
            self._samples[id(call)] = _Samples(request.sampling.n)
        self._open[request.request_id] = _Open(
            arrived, prompt_tokens, call, self._samples[id(call)], request.priority_class
        )
        assert request.sampling.max_tokens is not None, f"not resolved: {request.sampling}"
        if not request.embeds:
            self.max_tokens.add(request.sampling.max_tokens)
        if call is not None:
            call.model, call.sampling = self.model, None if request.embeds else request.sampling
            call.engine_ids.append(request.request_id)
            if request.sample_index == 0:
                call.num_prompts += 1
                call.prompt_tokens += prompt_tokens

    def received(self, outputs: Sequence[Output]) -> None:
        now = self._clock()
        for output in outputs:
            request = self._open.get(output.request_id)
            if request is None:
                continue
            if output.token_ids:
                self._count_tokens(request, output, now)
            elif output.embedding:
                self._count_prompt(request, output, now)
            if output.finish_reason is not None:
                self._end(output.request_id, output.finish_reason, now)

    def ended(self, request_id: int, reason: FinishReason) -> None:
        if request_id in self._open:
            self._end(request_id, reason, self._clock())

    def answered(self, call: Call) -> None:
        self._samples.pop(id(call), None)
        self.http[call.handler, call.method, call.status] += 1

    def _count_tokens(self, request: _Open, output: Output, now: float) -> None:
        if request.output_tokens == 0:
            request.first = now
            self.to_first.add(now - request.arrived)
            self._count_prompt(request, output, now)
        else:
            self.between.add(now - request.last)
        if output.num_drafted:
            request.rows += 1
            request.accepted += output.num_accepted
        count = len(output.token_ids)
        for _ in range(count - 1):
            self.between.add(0.0)
        request.last = now
        request.output_tokens += count
        self.generation_tokens += count

    def _count_prompt(self, request: _Open, output: Output, now: float) -> None:
        for each in self.classes:
            if each.name == request.priority_class:
                self.first_tokens[each.name, (now - request.arrived) * 1e6 <= each.ttft_target] += 1
        self.prompt_tokens += request.prompt_tokens
        cached = output.cached
        for tier, tokens in zip(Tier, (cached.device, cached.host, cached.disk), strict=True):
            self.cached_by_tier[tier] += tokens
        self.cached_requests += output.num_cached_tokens > 0
        if request.call is not None:
            request.call.cached_tokens += output.num_cached_tokens

    def _end(self, request_id: int, reason: FinishReason, now: float) -> None:
        request = self._open.pop(request_id)
        self.finished[reason] += 1
        self.to_end.add(now - request.arrived)
        self.prompt_lengths.add(request.prompt_tokens)
        self.output_lengths.add(request.output_tokens)
        if request.rows:
            self.acceptance_length.add(1 + request.accepted / request.rows)
        samples = request.samples
        samples.left -= 1
        samples.most_tokens = max(samples.most_tokens, request.output_tokens)
        if samples.left == 0:
            self.longest_outputs.add(samples.most_tokens)
        if request.output_tokens > 1:
            self.per_token.add((request.last - request.first) / (request.output_tokens - 1))
        if request.call is not None:
            request.call.output_tokens += request.output_tokens
            request.call.finish_reasons.append(reason)
