"""Whole random lives of an engine, made from a seed: fast, for volume."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from page_mirror import PageMirror
from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.kv.events import NO_EVENTS
from sluice.scheduler.request import Request, Status
from sluice.scheduler.window_reserve import window_reserve
from sluice.testing import Faults, FaultyRunner
from sluice.tracing.file import TraceFile
from sluice.types import (
    ITL_AUTO,
    NGRAM,
    NO_SAMPLING,
    DraftLimits,
    FinishReason,
    NgramLimits,
    SamplingParams,
    StateLimits,
    TierLimits,
    WindowLimits,
)
from worlds import (
    ADAPTERS,
    CLASSES,
    GRAMMARS,
    VOCAB,
    Bench,
    SlowDisk,
    World,
    check_ends,
    enough_steps,
    random_limits,
    random_offload,
    random_target,
    random_tiers,
    sliced,
)

ABORTS = (FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.EXPIRED)
AIMS = (
    Status.COMPILING,
    Status.WAITING,
    Status.LOADING,
    Status.PARTIAL,
    Status.DECODING,
    Status.FORCED,
    Status.OFFLOADED,
    Status.DRAINING,
)
"""The statuses of requests that have not ended."""


@dataclass(frozen=True)
class Scenario:
    world: World
    seed: int
    faulty: bool
    repeats: float = 0.0
    """Share of the requests that send an earlier prompt again."""
    max_requests: int = 10
    hurry: float = 0.4
    """Share of the steps before which a request arrives."""
    aims: Sequence[Status] = AIMS
    """Statuses in which requests are aborted."""
    fill: float = 0.0
    """Share of the pool that each prompt fills; 0: prompts have any length."""
    streams: bool = False
    """Whether prompts are short, and answers long."""


def random_scenario(seed: int) -> Scenario:
    """A world of any kind."""
    draw = random.Random(seed)
    page_size = draw.choice([1, 2, 4, 16, 64])
    depth, running = draw.randint(1, 3), draw.randint(1, 5)
    limits = random_target(random.Random(seed), random_limits(draw, page_size, running, depth))
    world = World(limits, draw.randint(3, 24), page_size, draw.random() < 0.6, depth, draw.random() < 0.5)
    faulty = draw.random() < 0.5
    world = replace(world, tiers=random_tiers(draw), disk_fails=draw.choice([0.0, 0.0, 0.1, 0.3, 1.0]))
    world = replace(world, masks_late=0.2 * (seed % 2))
    return Scenario(world, seed, faulty, repeats=draw.choice([0.0, 0.5]))


def random_reload_scenario(seed: int) -> Scenario:
    """One in which prompts are sent again to a device too small to keep them, in front of tiers that do."""
    draw = random.Random(seed)
    page_size, depth, running = draw.choice([1, 2, 4]), draw.randint(1, 3), draw.randint(1, 4)
    per_step = draw.choice([1, 2, 64])
    host_pages = draw.choice([0, 4, 30])
    tiers = replace(
        random_tiers(draw),
        host_pages=host_pages,
        disk_pages=draw.choice([10, 60]) if not host_pages or draw.random() < 0.5 else 0,
        copies_per_step=per_step,
        copies_in_flight=per_step * draw.choice([1, 4]),
    )
    limits = random_target(random.Random(seed), random_limits(draw, page_size, running, depth))
    limits = replace(limits, max_queued_requests=0, max_queued_tokens=0, max_loras=0)
    world = World(limits, draw.randint(4, 10), page_size, True, depth, draw.random() < 0.5, tiers)
    world = replace(world, disk_fails=draw.choice([0.0, 0.0, 0.1, 0.3]))
    return Scenario(
        world,
        seed,
        faulty=draw.random() < 0.2,
        repeats=0.8,
        max_requests=16,
        hurry=draw.choice([0.2, 0.4]),
        aims=(*AIMS, *[Status.LOADING] * 4),
        fill=draw.choice([0.4, 0.6, 0.8]),
    )


def random_offload_scenario(seed: int) -> Scenario:
    """One in whose world contexts may be longer than the device."""
    for each in itertools.count():
        scenario = random_scenario(seed * 1000 + each)
        draw = random.Random(seed)
        world = random_offload(draw, scenario.world)
        if world.offload is not None:
            fails = draw.choice([0.0, 0.0, 0.0, scenario.world.disk_fails])
            return replace(scenario, world=replace(world, disk_fails=fails), faulty=draw.random() < 0.2)
    raise AssertionError("there is always another one")


def random_sliced_scenario(seed: int) -> Scenario:
    """One of the others, in which prompts are long, and chunks are divided among steps."""
    draw = random.Random(seed)
    make = (random_scenario, random_reload_scenario, random_guess_scenario, random_offload_scenario)[seed % 4]
    scenario = make(seed)
    limits = replace(
        scenario.world.limits,
        schedule="mixed",
        chunked_prefill_size=draw.choice([8, 32, 128]),
        max_batch_tokens=160,
        max_prefill_tokens=0,
        long_prefill_token_threshold=0,
        dynamic_chunking=0,
        itl_target=draw.choice([1, 3000, 10_000, ITL_AUTO]),
    )
    limits = replace(sliced(draw, limits), max_partial_prefills=draw.randint(1, limits.max_running_requests))
    world = replace(scenario.world, limits=limits)
    scenario = replace(scenario, aims=(*scenario.aims, *[Status.PARTIAL] * 4))
    if world.offload is not None:
        return replace(scenario, world=world)
    world = replace(world, num_pages=max(8, world.num_pages))
    return replace(scenario, world=world, fill=scenario.fill or draw.choice([0.0, 0.3, 0.6]))


def random_draft_scenario(seed: int) -> Scenario:
    """One of the others, in which rows have drafts."""
    draw = random.Random(seed)
    scenario = (random_scenario, random_reload_scenario, random_scenario, random_offload_scenario)[seed % 4](seed)
    limits = replace(scenario.world.limits, num_draft_tokens=draw.choice([1, 2, 3, 5, 8]))
    world = scenario.world
    if seed % 4 == 2:  # streams that overlap, and pages that run out
        limits = replace(limits, lookahead=1, pipeline_stages=1, reserve="ratio", conservativeness=0.0)
        world = replace(world, depth=2, page_size=min(4, world.page_size), num_pages=12)
        scenario = replace(scenario, hurry=0.8, streams=True)
    right, wanted = draw.choice([0.3, 0.7, 0.9, 1.0]), draw.choice([0.5, 1.0])
    world = replace(world, limits=limits, drafts_right=right, drafts_wanted=wanted)
    return replace(scenario, world=replace(world, runner_drafts=seed % 5 == 0, drafts_eager=seed % 3 == 0))


def random_block_scenario(seed: int) -> Scenario:
    """One of the others, of a model that fills in blocks of tokens."""
    draw = random.Random(seed)
    scenario = (random_scenario, random_reload_scenario)[seed % 2](seed)
    return replace(scenario, world=in_blocks(scenario.world, draw))


def random_state_scenario(seed: int) -> Scenario:
    """One of the others without tiers, of a model with recurrent states, in which prompts begin alike."""
    draw = random.Random(seed)
    make = (random_scenario, random_draft_scenario, random_sliced_scenario, random_guess_scenario)[seed % 4]
    scenario = next(each for number in itertools.count() if (each := make(seed + 1001 * number)).world.offload is None)
    block, num_records = draw.choice([1, 2, 4, 8]), draw.choice([0, 1, 2, 4, 30, 30])
    world = replace(
        scenario.world,
        limits=replace(scenario.world.limits, states=StateLimits(block, num_records, draw.choice([0, 0, 4, 16]))),
        tiers=TierLimits(),
        disk_fails=0.0,
        prefix_caching=seed % 7 > 0,
        num_pages=max(8, scenario.world.num_pages),
    )
    if seed % 5 == 3:
        world = with_windows(world, draw)
    return replace(scenario, world=world, repeats=draw.choice([0.3, 0.8]), max_requests=16)


def random_window_scenario(seed: int) -> Scenario:
    """One of the others without tiers, of a model with windows, in which prompts begin alike."""
    draw = random.Random(seed)
    make = (random_scenario, random_draft_scenario, random_sliced_scenario, random_guess_scenario)[seed % 4]
    scenario = next(each for number in itertools.count() if (each := make(seed + 1001 * number)).world.offload is None)
    world = replace(
        scenario.world,
        tiers=TierLimits(),
        disk_fails=0.0,
        prefix_caching=seed % 5 > 0,
        num_pages=max(scenario.world.num_pages, draw.choice([0, 40, 80])),
    )
    world = with_windows(world, draw)
    return replace(scenario, world=world, repeats=draw.choice([0.3, 0.8]), max_requests=16)


def with_windows(world: World, draw: random.Random) -> World:
    """The same world, of a model some of whose layers have a window."""
    length = draw.randint(1, 4 * world.page_size)
    reserve = window_reserve(world.limits, length, world.page_size, world.depth, world.pool_tokens)
    pages = min(world.num_pages, reserve + draw.choice([0, 0, 2, 8]))
    return replace(world, windows=WindowLimits(length, pages))


def in_blocks(world: World, draw: random.Random) -> World:
    """The same world, as far as such a model has it, with blocks of a size that divides its pages."""
    limits, size = world.limits, draw.choice([size for size in (1, 2, 4, 8) if world.page_size % size == 0])
    limits = replace(
        limits,
        max_batch_tokens=limits.max_batch_tokens + 2 * size * limits.max_running_requests,
        dynamic_chunking=0,
        itl_target=0,
        pipeline_stages=1,
        block_size=size,
        prefills_by_block=limits.chunked_prefill_size > 0 and draw.random() < 0.3,
    )
    return replace(world, limits=limits)


def random_guess_scenario(seed: int) -> Scenario:
    """One of those with drafts, which are guessed by n-grams and sized by what they bring."""
    draw, scenario = random.Random(seed), random_draft_scenario(seed)
    ngram = NgramLimits(draw.choice([1, 2, 4]), draw.choice([4, 12]), draw.choice([0, 64, 1000]))
    return replace(scenario, world=replace(scenario.world, drafting=DraftLimits(NGRAM, ngram)))


def run(
    scenario: Scenario,
    journal: TraceFile | None = None,
    met: Counter[str] | None = None,
    mirror: PageMirror | None = None,
) -> int:
    """Play a scenario to its end, check everything, record it in the journal and count in `met` what it meets. The
    mirror is compared with the prefix tree after each step. Returns the number of steps."""
    draw = random.Random(scenario.seed)
    world = scenario.world
    faults = random_faults(draw) if scenario.faulty else Faults()
    disk = SlowDisk(world, draw, lambda shadow: FaultyRunner(shadow, faults))
    bench = disk.bench(journal, met, NO_EVENTS if mirror is None else mirror.log)
    to_send, steps = draw.randint(1, scenario.max_requests), 0
    sent: dict[int, Submit] = {}
    aims = draw.choices(scenario.aims, k=draw.randint(0, 3))
    while to_send or not bench.is_idle:
        if to_send and draw.random() < scenario.hurry:
            submit = random_submit(draw, world, request_id=len(sent), fill=scenario.fill, embeds=len(sent) % 6 == 4)
            if scenario.streams and not submit.embeds:
                submit = longer_answer(submit, world)
            if sent and draw.random() < scenario.repeats:
                submit = asked_again(draw, draw.choice([*sent.values()]), submit)
            if world.limits.block_size:
                submit = plain(submit)
            sent[submit.request_id] = submit
            bench.link.put(submit)
            to_send -= 1
        if sent and draw.random() < 0.02:
            bench.link.put(Abort(draw.choice(sorted(sent)), draw.choice(ABORTS)))
        aimed_abort(draw, bench, aims)
        if draw.random() < 0.01:
            bench.link.put(FlushCache(steps))
        if not bench.engine.in_flight and draw.random() < 0.005:
            bench.engine.scheduler.forget_device()
            disk.replace(bench)
        bench.step()
        if mirror is not None:
            mirror.check(bench.scheduler.state.kv)
        steps += 1
        assert steps <= enough_steps(sent), f"law 12: still busy after {steps} steps"
    unreliable = world.offload is not None and bool(world.disk_fails or world.reads_fail)
    check_ends(bench, sent, faults=scenario.faulty or unreliable)
    return steps


def aimed_abort(draw: random.Random, bench: Bench, aims: list[Status]) -> None:
    """Abort a request that has one of the statuses aimed at, which is then aimed at no more; or wait for a better
    moment."""
    requests: Iterable[Request] = bench.scheduler.state.requests.values()
    targets = [request for request in requests if request.status in aims and request.finish_reason is None]
    if targets and draw.random() < 0.3:
        target = draw.choice(targets)
        aims.remove(target.status)
        bench.link.put(Abort(target.id, draw.choice(ABORTS)))


def longer_answer(submit: Submit, world: World) -> Submit:
    """The request with the beginning of its prompt, and an answer that fills a half of the pool."""
    prompt = submit.prompt[:3]
    sampling = replace(submit.sampling, max_tokens=max(1, world.pool_tokens // 2 - len(prompt)))
    return replace(submit, prompt=prompt, sampling=sampling)


def plain(submit: Submit) -> Submit:
    """The same request without what a model that fills in blocks does not give."""
    max_tokens = submit.sampling.max_tokens or 1
    sampling = replace(submit.sampling, max_tokens=max_tokens, logprobs=None, prompt_logprobs=None)
    return replace(submit, sampling=sampling, embeds=False, grammar="")


def asked_again(draw: random.Random, earlier: Submit, submit: Submit) -> Submit:
    """A request with the prompt of an earlier one, which it may take from the cache."""
    if submit.embeds:
        return replace(submit, prompt=earlier.prompt, extra_key=earlier.extra_key)
    sampling = replace(
        submit.sampling,
        max_tokens=earlier.sampling.max_tokens,
        prompt_logprobs=draw.choice([None] * 7 + [1]),
    )
    return replace(submit, prompt=earlier.prompt, extra_key=earlier.extra_key, sampling=sampling)


def random_faults(draw: random.Random) -> Faults:
    return Faults(
        launch_raises=frozenset(draw.sample(range(60), 2)),
        wait_raises=frozenset(draw.sample(range(60), 2)),
        row_fails={draw.randrange(60): draw.randrange(5)},
    )


def random_submit(
    draw: random.Random, world: World, *, request_id: int, fill: float = 0.0, embeds: bool = False
) -> Submit:
    """A request that fits the world; half of them begin alike.

    Args:
        embeds: whether it is to be embedded.
        fill: share of the pool that its prompt fills; 0: any length that can be served.
    """
    longest = world.longest if draw.random() < 0.5 else min(world.longest, world.pool_tokens)
    longest = max(2, longest)
    length = draw.randint(1, draw.randint(1, longest - 1))
    if fill:
        length = max(1, int(fill * (world.pool_tokens - 1)))
    max_tokens = draw.randint(1, min(longest - length, 20))
    prompt = [0] * length if draw.random() < 0.5 else draw.choices(range(VOCAB), k=length)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        seed=draw.randrange(3),
        stop_token_ids=(1,) if draw.random() < 0.2 else (),
        logprobs=draw.choice([None, None, None, 0, 2]),
        prompt_logprobs=draw.choice([None, None, None, 0, 1]),
    )
    return Submit(
        request_id,
        tuple(prompt),
        NO_SAMPLING if embeds else sampling,
        sample_index=draw.randrange(2),
        extra_key=draw.choice(["", "tenant"]),
        priority=(priority := draw.randrange(3)),
        priority_class=CLASSES[priority].name,
        arrived=1000 * request_id,
        lookahead=draw.choice([None, None, None, 0, 1]),
        embeds=embeds,
        grammar="" if embeds else GRAMMARS[(request_id + length) % len(GRAMMARS)],
        adapter=ADAPTERS[(3 * request_id + length) % len(ADAPTERS)] if world.limits.max_loras else "",
    )
