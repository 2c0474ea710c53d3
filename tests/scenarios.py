"""Whole random lives of an engine, made from a seed: fast, for volume."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from sluice.engine.messages import Abort, FlushCache, Submit
from sluice.testing import Faults, FaultyRunner
from sluice.tracing.recorder import Journal
from sluice.types import FinishReason, SamplingParams
from worlds import VOCAB, SlowDisk, World, check_ends, enough_steps, random_limits, random_streams, random_tiers

ABORTS = (FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.EXPIRED)


@dataclass(frozen=True)
class Scenario:
    world: World
    seed: int
    faulty: bool


def scenarios() -> st.SearchStrategy[Scenario]:
    return st.builds(random_scenario, st.integers(0, 2**32))


def random_scenario(seed: int) -> Scenario:
    """The same without Hypothesis."""
    draw = random.Random(seed)
    page_size = draw.choice([1, 2, 4, 16, 64])
    depth, running = draw.randint(1, 3), draw.randint(1, 5)
    limits = random_limits(draw, page_size, running, depth)
    world = World(limits, draw.randint(3, 24), page_size, draw.random() < 0.6, depth, draw.random() < 0.5)
    faulty = draw.random() < 0.5
    world = replace(world, tiers=random_tiers(draw), disk_fails=draw.choice([0.0, 0.0, 0.1, 0.3, 1.0]))
    return Scenario(world, seed, faulty)


def random_offload_scenario(seed: int) -> Scenario:
    """One in whose world contexts may be longer than the device."""
    for each in itertools.count():
        scenario = random_scenario(seed * 1000 + each)
        draw = random.Random(seed)
        world = random_streams(draw, scenario.world)
        if world.offload is not None:
            fails = draw.choice([0.0, 0.0, 0.0, scenario.world.disk_fails])
            return replace(scenario, world=replace(world, disk_fails=fails), faulty=draw.random() < 0.2)
    raise AssertionError("there is always another one")


def run(scenario: Scenario, journal: Journal | None = None) -> int:
    """Play a scenario to its end, check everything and record it in the journal. Returns the number of steps."""
    draw = random.Random(scenario.seed)
    world = scenario.world
    faults = random_faults(draw) if scenario.faulty else Faults()
    disk = SlowDisk(world, draw, lambda shadow: FaultyRunner(shadow, faults))
    bench = disk.bench(journal)
    to_send, sent, steps = draw.randint(1, 10), {}, 0
    while to_send or not bench.is_idle:
        if to_send and draw.random() < 0.4:
            submit = random_submit(draw, world, request_id=len(sent))
            sent[submit.request_id] = submit
            bench.link.put(submit)
            to_send -= 1
        if sent and draw.random() < 0.05:
            bench.link.put(Abort(draw.choice(sorted(sent)), draw.choice(ABORTS)))
        if draw.random() < 0.02:
            bench.link.put(FlushCache(steps))
        if not bench.engine.in_flight and draw.random() < 0.01:
            bench.engine.scheduler.forget_device()
            disk.replace(bench)
        bench.step()
        steps += 1
        assert steps <= enough_steps(sent), f"law 12: still busy after {steps} steps"
    unreliable = world.offload is not None and bool(world.disk_fails or world.reads_fail)
    check_ends(bench, sent, faults=scenario.faulty or unreliable)
    return steps


def random_faults(draw: random.Random) -> Faults:
    return Faults(
        launch_raises=frozenset(draw.sample(range(60), 2)),
        wait_raises=frozenset(draw.sample(range(60), 2)),
        row_fails={draw.randrange(60): draw.randrange(5)},
    )


def random_submit(draw: random.Random, world: World, *, request_id: int) -> Submit:
    longest = world.longest if draw.random() < 0.5 else min(world.longest, world.pool_tokens)
    longest = max(2, longest)
    length = draw.randint(1, draw.randint(1, longest - 1))
    max_tokens = draw.randint(1, min(longest - length, 20))
    prompt = [0] * length if draw.random() < 0.5 else draw.choices(range(VOCAB), k=length)
    return Submit(
        request_id,
        tuple(prompt),
        SamplingParams(
            max_tokens=max_tokens,
            seed=draw.randrange(3),
            stop_token_ids=(1,) if draw.random() < 0.2 else (),
            logprobs=draw.choice([None, None, None, 0, 2]),
            prompt_logprobs=draw.choice([None, None, None, 0, 1]),
        ),
        sample_index=draw.randrange(2),
        extra_key=draw.choice(["", "tenant"]),
        priority=draw.randrange(3),
        lookahead=draw.choice([None, None, None, 0, 1]),
    )
