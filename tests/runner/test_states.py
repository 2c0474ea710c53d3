"""Recurrent states under the real engine, scheduler and runner: in every life each row's state is that of its
tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from slow import lives
from sluice.engine.messages import Abort, Submit
from sluice.runner.runner import TorchRunner
from sluice.testing import Faults, FaultyRunner
from sluice.types import FinishReason, SamplingParams, StateLimits
from state_model import state_runner, state_shape
from worlds import Bench, World, check_ends, enough_steps, random_limits

VOCAB = 50
BLOCK = 64
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=8)


def random_world(draw: random.Random) -> World:
    """A device that runs short, with chunks of any length, overlapping steps, drafts, and chunks that are sliced."""
    page_size, running, depth = draw.choice([4, 16, 32, 64]), draw.randint(1, 4), draw.randint(1, 3)
    limits = replace(
        random_limits(draw, page_size, running, depth),
        pipeline_stages=1,
        max_loras=0,
        max_queued_requests=0,
        max_queued_tokens=0,
        num_draft_tokens=draw.choice([0, 0, 3]),
        states=StateLimits(BLOCK, draw.choice([0, 1, 3, 20]), draw.choice([0, 128])),
    )
    if draw.random() < 0.5:
        limits = replace(limits, reserve="ratio", conservativeness=0.0, max_running_requests=4)
    if draw.random() < 0.5:
        chunk = max(page_size, draw.choice([63, 64, 65, 100, 400]))
        limits = replace(limits, chunked_prefill_size=chunk, max_batch_tokens=chunk + 8)
    if limits.schedule == "mixed" and limits.chunked_prefill_size and draw.random() < 0.5:
        limits = replace(
            limits,
            max_prefill_tokens=0,
            long_prefill_token_threshold=0,
            dynamic_chunking=0,
            itl_target=draw.choice([1, 3000]),
            sliced_chunk_size=100,
            num_layers=3,
        )
    return World(limits, draw.randint(450, 700) // page_size, page_size, depth=depth)


def runner_of(world: World) -> TorchRunner:
    limits = world.limits
    shape = state_shape(
        num_pages=world.num_pages,
        page_size=world.page_size,
        num_slots=limits.max_running_requests,
        reach=1 + max(limits.lookahead, limits.num_draft_tokens),
        num_records=0 if limits.states is None else limits.states.num_records,
        vocab_size=VOCAB,
    )
    return state_runner(shape, num_layers=limits.num_layers)


def play(seed: int, met: Counter[str]) -> None:
    """One life: requests that come while others run, some of which are aborted; steps that fail."""
    draw = random.Random(seed)
    world = random_world(draw)
    is_faulty = draw.random() < 0.2
    failing = frozenset(draw.sample(range(60), 4) if is_faulty else ())
    faults = Faults(wait_raises=failing)
    bench = Bench.of(world, FaultyRunner(runner_of(world), faults), met=met)
    submits: dict[int, Submit] = {}
    aborted: set[int] = set()
    for request_id in range(draw.randint(2, 8)):
        length = draw.choice([1, draw.randint(1, 70), draw.randint(1, 260)])
        prompt = tuple(draw.randrange(VOCAB) for _ in range(length))
        if submits and draw.random() < 0.5:  # the next turn of a conversation, or a prompt that parts from another
            earlier = draw.choice([*submits.values()])
            turn = (*earlier.prompt, *bench.link.tokens(earlier.request_id))
            prompt = (*turn[: draw.choice([len(turn), draw.randint(0, len(turn))])], *prompt)[:300]
        sampling = replace(GREEDY, max_tokens=draw.choice([1, 9, 140]))
        submits[request_id] = Submit(request_id, prompt, sampling)
        bench.link.put(submits[request_id])
        for _ in range(draw.choice([1, 2, 9])):
            bench.step()
        if draw.random() < 0.15:
            aborted.add(request_id)
            bench.link.put(Abort(request_id, FinishReason.ABORT))
    bench.drain(4 * enough_steps(submits))
    whole = {each: submit for each, submit in submits.items() if each not in aborted}
    if not is_faulty:
        check_ends(bench, whole, vocab_size=VOCAB)
    for each in submits:
        error = bench.link.end(each).error
        assert error is None or "Injected" in error, error


@lives(9, 200, 11)
def test_the_state_of_each_row_is_that_of_its_tokens(seeds: Sequence[int]) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        try:
            play(seed, met)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    for each in ("preempted while decoding", "layers of a chunk", "opened from a record", "slot saved"):
        assert met[each], f"no life met {each!r}: {sorted(met)}"
    assert met["none of the drafts accepted"] + met["some of the drafts accepted"] > 0
