"""Options of the scheduler: what one step may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.config.base import ConfigError, micros_of, option
from sluice.config.priority_classes import classes_of
from sluice.types import CHUNKS_BY_TIME, ITL_AUTO, SchedulerLimits

CHUNKING_OFF = (-1, 0)
ITL_OFF = "off"
ITL_BY_DECODES = "auto"
DECODE_STEPS = re.compile(r"(\d{1,3})x")
FEWEST_DECODE_STEPS, MOST_DECODE_STEPS = 2, 100
ITL_QUANTILE = 0.95
DYNAMIC_CHUNKING_SMOOTHING = 0.75


def itl_micros(target: str | None) -> int:
    """Return the microseconds of an ITL target; 0: it is off; below 0: it is as many steps of
    the running decodes.

    Raises:
        ConfigError: it is neither a duration nor such a number of steps.
    """
    if target is None or target == ITL_OFF:
        return 0
    if target == ITL_BY_DECODES:
        return ITL_AUTO
    steps = DECODE_STEPS.fullmatch(target)
    if steps is not None and FEWEST_DECODE_STEPS <= int(steps[1]) <= MOST_DECODE_STEPS:
        return -int(steps[1])
    micros = micros_of(target)
    if micros is None:
        raise ConfigError(
            f"--itl-target must be a time such as 200ms or 1.5s, a number of steps from {FEWEST_DECODE_STEPS}x to"
            f" {MOST_DECODE_STEPS}x, auto or off, got {target!r}"
        )
    return micros


@dataclass(frozen=True)
class SchedulerConfig:
    """What one step may hold."""

    schedule: str = option(
        "mixed",
        "how prefills and decodes are batched",
        more="mixed: a step holds decodes first, then prefill chunks, so running requests never wait for a whole"
        " prompt. prefill-first: steps hold either prefills or decodes, and prefills go first.",
        choices=("mixed", "prefill-first"),
        sglang="--enable-mixed-chunk",
    )
    chunked_prefill_size: int | None = option(
        None,
        "maximum prefill tokens in a step; -1: no chunking",
        unset="128 on cpu (256 with AMX), 2048 on cuda",
        more="Longer prompts are cut into chunks of whole pages. The last chunk of a prompt may have up to a page more,"
        " rather than leave a few tokens for another step. With -1 or 0, prompts are never cut.",
        sglang="--chunked-prefill-size",
    )
    dynamic_chunking: int | None = option(
        None,
        "shrink chunks deep in a prompt; 0: by measured time",
        unset="off",
        more="All chunks of a prompt then take about the same time, although attention takes longer deep in a prompt."
        " The value is the position at which a prompt token takes twice as long as the first one. With 0 it is"
        " measured, at the start and with every step, and decodes count with the time that they take"
        " ([parallel.md](parallel.md)); --enable-dynamic-chunking is the same as 0."
        " Chunks have at least a quarter of --chunked-prefill-size.",
        sglang="--enable-dynamic-chunking",
        metavar="POSITION",
    )
    dynamic_chunking_smoothing: float | None = option(
        None,
        "how far chunks shrink to the time of the first",
        unset="0.75",
        more="1: all the way, above 0: less. Needs --dynamic-chunking.",
        metavar="X",
    )
    itl_target: str | None = option(
        None,
        "time that a stream may stand still in a step",
        unset="8x on cpu if it can",
        more="Such as 200ms or 1.5s; 8x: 8 times what a step of the running decodes takes without prefill; auto is 4x."
        " Without one it is 8x on a CPU, where the model's chunks can be sliced, unless --chunked-prefill-size,"
        " --max-batch-tokens, --pp-size or an option that a target would contradict is set, and off in `LLM()`. Steps"
        " take as much prefill as is predicted to end within this time; how long steps take is learnt from those that"
        " ran ([chunks by time](itl-target.md)). --chunked-prefill-size is the most prefill of a step, by default 4"
        " times what it is without a target. Requests may have a longer target of their own (`itl_target`). Needs"
        " --schedule mixed and prompts that may be cut.",
        metavar="TIME",
    )
    sliced_chunk_size: int | None = option(
        None,
        "maximum tokens of a chunk whose layers are divided among steps; 0: no such chunks",
        unset="2048 with --itl-target",
        more="Off if --chunked-prefill-size or --pp-size is set, unless asked for. What a step cannot hold of a prompt"
        " becomes one long chunk, of which each step computes some layers: streams get their tokens between them, and"
        " the chunk is as efficient as its length ([chunks by time](itl-target.md#sliced-chunks)). Needs --itl-target,"
        " and a native model.",
        metavar="TOKENS",
    )
    itl_quantile: float | None = option(
        None,
        "share of the steps that --itl-target is to hold for",
        unset="0.95",
        more="From 0.5 to 0.999. Needs --itl-target.",
        metavar="X",
    )
    max_batch_tokens: int | None = option(
        None,
        "maximum tokens in a step, decodes included",
        unset="chunk + running requests",
        more="Decodes are counted first, so it must be larger than --max-running-requests. The default is"
        " --chunked-prefill-size + --max-running-requests.",
        aliases=("max_num_batched_tokens",),
        vllm="--max-num-batched-tokens",
        positive=True,
    )
    max_running_requests: int | None = option(
        None,
        "maximum running requests",
        unset="64 on cpu, 256 on cuda",
        aliases=("max_num_seqs",),
        sglang="--max-running-requests",
        vllm="--max-num-seqs",
        positive=True,
    )
    max_prefill_tokens: int | None = option(
        None,
        "maximum tokens in a step that holds a prefill",
        unset="no limit",
        more="Decodes in the step count too, but the first prompt of a step may have a page however many there are. The"
        " next prompt waits if it would exceed the limit. A prompt that is larger than the limit runs alone, cut into"
        " chunks unless chunking is off.",
        aliases=("prefill_max_tokens",),
        sglang="--max-prefill-tokens",
        positive=True,
    )
    long_prefill_token_threshold: int | None = option(
        None,
        "maximum prefill tokens of one request in a step",
        unset="no limit",
        vllm="--long-prefill-token-threshold",
        positive=True,
    )
    max_prefill_requests: int | None = option(
        None,
        "maximum requests prefilled in a step",
        unset="no limit",
        aliases=("prefill_max_requests", "prefill_max_batch_size"),
        sglang="--prefill-max-requests",
        positive=True,
    )
    max_partial_prefills: int | None = option(
        None,
        "maximum partly computed prompts",
        unset="4",
        more="1: prompts run one after the other. More: short prompts overtake long ones, and the oldest prompt gets"
        " half of every step at least. The default is 1 if prompts are never cut.",
        aliases=("max_num_partial_prefills",),
        vllm="--max-num-partial-prefills",
        positive=True,
    )
    reserve: str = option(
        "ratio",
        "KV memory kept free for outputs of running requests",
        more="full: enough for all tokens that they may generate, so no request is ever preempted. ratio: a share of"
        " that, which falls while memory suffices and rises when a request is preempted.",
        choices=("ratio", "full"),
    )
    schedule_conservativeness: float | None = option(
        None,
        "factor for the share that --reserve ratio keeps free",
        unset="1",
        more="0 keeps nothing free.",
        sglang="--schedule-conservativeness",
        metavar="X",
    )
    schedule_policy: str | None = option(
        None,
        "order of waiting requests",
        unset="fcfs, or deadline with --priority-classes",
        more="fcfs: first come, first served. lpm: longest prefix cached on any tier first. priority: by the request's"
        " priority, larger values first, then by arrival. deadline: by the time at which the first token is due, which"
        " depends on the request's class ([priority classes](fairness.md#priority-classes)). Under the first three"
        " preempted requests go first; under none does a request wait for ever.",
        choices=("fcfs", "lpm", "priority", "deadline"),
        nearest={"dfs-weight": "lpm", "lof": "fcfs", "random": "fcfs"},
        aliases=("scheduling_policy",),
        sglang="--schedule-policy",
        vllm="--scheduling-policy",
    )
    priority_classes: str | None = option(
        None,
        "targets of interactive, standard and batch requests",
        unset="TTFT within 1s, 10s and 10m",
        more="A request names its class as its priority, and is standard if it does not. ttft is the time from its"
        " arrival to its first token, by which requests are ordered; itl is what its stream may stand still in a step,"
        " as a time or as a multiple of --itl-target, without which there is none. What is left out has its default,"
        " interactive:ttft=1s,standard:ttft=10s,batch:ttft=10m:itl=4x."
        " Needs --schedule-policy deadline, which is the default with it.",
        metavar="CLASSES",
    )
    schedule_low_priority_values_first: bool = option(
        False,
        "smaller priority values go first",
        more="Needs --schedule-policy priority.",
        sglang="--schedule-low-priority-values-first",
    )
    enable_priority_preemption: bool = option(
        False,
        "preempt running requests for higher priorities",
        more="Needs --schedule-policy priority or deadline. A preempted request continues later, with the tokens it"
        " has. With deadline, only requests of a less urgent class with a later deadline are preempted.",
    )
    max_queued_requests: int | None = option(
        None,
        "maximum waiting requests",
        unset="no limit",
        more="A request that arrives while this many wait is refused with status 503 and a `Retry-After` header."
        " Preempted requests are not limited.",
        aliases=("max_num_queued_reqs",),
        sglang="--max-queued-requests",
        vllm="--max-num-queued-reqs",
        positive=True,
    )
    max_queued_tokens: int | None = option(
        None,
        "maximum uncached prompt tokens of waiting requests",
        unset="no limit",
        more="Counts the tokens of all prompts that are still to be prefilled, without prefixes cached on any tier,"
        " and so limits the time to the first token. A request that would exceed it is refused, unless no other request"
        " waits.",
        aliases=("max_num_queued_tokens",),
        vllm="--max-num-queued-tokens",
        positive=True,
    )
    enable_overlap: bool = option(
        False,
        "plan the next step while the current one runs",
        more="The same as --depth 2 --lookahead 1.",
        aliases=("async_scheduling",),
        vllm="--async-scheduling",
    )
    depth: int | None = option(
        None,
        "maximum steps in flight at once",
        unset="1",
        more="1: the engine waits for each step before it plans the next. 2: it launches the next step first.",
        positive=True,
    )
    lookahead: int | None = option(
        None,
        "samples of a request that may be unread on the device",
        unset="0",
        more="The next token of a request is planned while up to this many of its samples are still on the device. At"
        " most --depth - 1.",
    )

    def limits(self) -> SchedulerLimits:
        """Return the scheduler's limits. All options must be resolved."""
        chunk, batch, running = self.chunked_prefill_size, self.max_batch_tokens, self.max_running_requests
        partial, lookahead = self.max_partial_prefills, self.lookahead
        assert chunk is not None and batch is not None and running is not None, f"not resolved: {self}"
        assert partial is not None and lookahead is not None, f"not resolved: {self}"
        scale, itl_target = self.schedule_conservativeness, itl_micros(self.itl_target)
        assert self.schedule_policy is not None, f"not resolved: {self}"
        given = self.dynamic_chunking_smoothing
        smoothing = DYNAMIC_CHUNKING_SMOOTHING if given is None else given
        by_deadline = self.schedule_policy == "deadline"
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
            dynamic_chunking=CHUNKS_BY_TIME if self.dynamic_chunking == 0 else self.dynamic_chunking or 0,
            dynamic_chunking_smoothing=1.0 if self.dynamic_chunking is None else smoothing,
            itl_target=itl_target,
            sliced_chunk_size=self.sliced_chunk_size or 0,
            itl_quantile=ITL_QUANTILE if self.itl_quantile is None else self.itl_quantile,
            classes=classes_of(self.priority_classes, itl_target) if by_deadline else (),
        )
