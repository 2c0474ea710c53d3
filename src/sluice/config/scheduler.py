"""Options of the scheduler: what one step may hold."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option
from sluice.types import SchedulerLimits

CHUNKING_OFF = (-1, 0)


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold."""

    schedule: str = option(
        "mixed",
        "what shares a step",
        more="mixed: decodes and prefill chunks share a step, decodes first, so a running stream never waits for a"
        " prompt. prefill-first: prefill goes before decodes, and they share no step.",
        choices=("mixed", "prefill-first"),
        sglang="--enable-mixed-chunk",
    )
    chunked_prefill_size: int | None = option(
        None,
        "prefill tokens of a step; -1: off",
        unset="128 on cpu (256 with AMX), 2048 on cuda",
        more="Longer prompts are cut, in whole pages. With -1 or 0 prompts are never cut.",
        sglang="--chunked-prefill-size",
    )
    dynamic_chunking: int | None = option(
        None,
        "shrink chunks as contexts grow; 0: by the model",
        unset="off",
        more="The number is the position at which a prompt token takes twice as long as the first one, as attention has"
        " as much to do there as all else; 0 computes it from the model's sizes. A chunk deep in a prompt then takes"
        " as long as one of chunked-prefill-size tokens at its beginning, or a quarter of its tokens if that is more.",
        sglang="--enable-dynamic-chunking",
        metavar="POSITION",
    )
    max_batch_tokens: int | None = option(
        None,
        "tokens of a step, decodes too",
        unset="chunk + running requests",
        more="Decodes come off it first, so it must be larger than max-running-requests. Left open it is"
        " chunked-prefill-size + max-running-requests.",
        aliases=("max_num_batched_tokens",),
        vllm="--max-num-batched-tokens",
        positive=True,
    )
    max_running_requests: int | None = option(
        None,
        "requests on the device at once",
        unset="64 on cpu, 256 on cuda",
        aliases=("max_num_seqs",),
        sglang="--max-running-requests",
        vllm="--max-num-seqs",
        positive=True,
    )
    max_prefill_tokens: int | None = option(
        None,
        "tokens of a step that prefills",
        unset="no such limit",
        more="Decodes come off it. The next prompt in order waits rather than exceed it; one that is larger than all of"
        " it goes alone, cut if prompts may be cut.",
        sglang="--max-prefill-tokens",
        positive=True,
    )
    long_prefill_token_threshold: int | None = option(
        None,
        "prefill tokens of one request in a step",
        unset="no such limit",
        vllm="--long-prefill-token-threshold",
        positive=True,
    )
    max_prefill_requests: int | None = option(
        None,
        "requests prefilled in one step",
        unset="no such limit",
        aliases=("prefill_max_requests",),
        sglang="--prefill-max-requests",
        positive=True,
    )
    max_partial_prefills: int | None = option(
        None,
        "prompts half computed at once",
        unset="4",
        more="1: one after the other. More: short prompts overtake long ones, and the oldest prompt has half of every"
        " step. Left open it is 1 if prompts are never cut.",
        aliases=("max_num_partial_prefills",),
        vllm="--max-num-partial-prefills",
        positive=True,
    )
    reserve: str = option(
        "ratio",
        "memory counted for running outputs",
        more="full: all tokens that running requests may generate, so no request is ever preempted. ratio: a share of"
        " them, which falls while memory lasts and rises when it does not.",
        choices=("ratio", "full"),
    )
    schedule_conservativeness: float | None = option(
        None,
        "scales the share of --reserve ratio",
        unset="1",
        more="0 counts no output.",
        sglang="--schedule-conservativeness",
        metavar="X",
    )
    schedule_policy: str = option(
        "fcfs",
        "order of waiting requests",
        more="fcfs: arrival. lpm: longest prefix match, the request with most of its prompt cached. priority: the"
        " request's priority, larger values first, then arrival. Under all of them preempted requests go first, and no"
        " request waits for ever.",
        choices=("fcfs", "lpm", "priority"),
        aliases=("scheduling_policy",),
        sglang="--schedule-policy",
        vllm="--scheduling-policy",
    )
    schedule_low_priority_values_first: bool = option(
        False,
        "smaller priorities go first",
        more="Needs the policy priority.",
        sglang="--schedule-low-priority-values-first",
    )
    enable_priority_preemption: bool = option(
        False,
        "running requests may make way for higher priorities",
        more="Needs the policy priority. A preempted request continues later with the tokens it has.",
    )
    max_queued_requests: int | None = option(
        None,
        "requests that may wait",
        unset="no such limit",
        more="A request that arrives while so many wait is refused at once, with status 503 and a `Retry-After`."
        " Preempted requests wait however many there are.",
        aliases=("max_num_queued_reqs",),
        sglang="--max-queued-requests",
        vllm="--max-num-queued-reqs",
        positive=True,
    )
    max_queued_tokens: int | None = option(
        None,
        "uncached tokens that may wait",
        unset="no such limit",
        more="What is still to be prefilled of all prompts, cached beginnings left out: it bounds the time to the first"
        " token. A prompt is refused if it would exceed it, unless nothing waits.",
        aliases=("max_num_queued_tokens",),
        vllm="--max-num-queued-tokens",
        positive=True,
    )
    enable_overlap: bool = option(
        False,
        "plan a step while the one before runs",
        more="The same as --depth 2 --lookahead 1.",
        aliases=("async_scheduling",),
        vllm="--async-scheduling",
    )
    depth: int | None = option(
        None,
        "steps in flight at once",
        unset="1",
        more="1: synchronous. 2: the next step is launched before the one before is waited for.",
        positive=True,
    )
    lookahead: int | None = option(
        None,
        "unread samples of a planned request",
        unset="0",
        more="How many samples of a request may still be on their way when its next token is planned; at most"
        " depth - 1.",
    )

    def limits(self) -> SchedulerLimits:
        """Return the scheduler's limits. All options must be resolved."""
        chunk, batch, running = self.chunked_prefill_size, self.max_batch_tokens, self.max_running_requests
        partial, lookahead = self.max_partial_prefills, self.lookahead
        assert chunk is not None and batch is not None and running is not None, f"not resolved: {self}"
        assert partial is not None and lookahead is not None, f"not resolved: {self}"
        scale = self.schedule_conservativeness
        return SchedulerLimits(
            schedule=self.schedule,
            chunked_prefill_size=chunk,
            max_batch_tokens=batch,
            max_running_requests=running,
            lookahead=lookahead,
            max_prefill_tokens=self.max_prefill_tokens or 0,
            long_prefill_token_threshold=self.long_prefill_token_threshold or 0,
            max_prefill_requests=self.max_prefill_requests or 0,
            max_partial_prefills=partial,
            reserve=self.reserve,
            conservativeness=1.0 if scale is None else scale,
            policy=self.schedule_policy,
            low_priority_values_first=self.schedule_low_priority_values_first,
            priority_preemption=self.enable_priority_preemption,
            max_queued_requests=self.max_queued_requests or 0,
            max_queued_tokens=self.max_queued_tokens or 0,
            dynamic_chunking=self.dynamic_chunking or 0,
        )
