"""How much prefill an engine has before it."""

from __future__ import annotations

from array import array
from typing import Any

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.scheduler.backlog import cached_anywhere, queued_prefill_tokens
from sluice.scheduler.prefix_match import cached_len
from sluice.scheduler.request import Request
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from sluice.types import StateLimits
from worlds import Bench, World, limits_of

WORLD = World(limits_of(chunk=8, running=2), num_pages=128, page_size=2)
PROMPTS = ((0, 1) * 10, (1, 1) * 10, (1, 0, 0) * 6)


def engine_of() -> Engine:
    return Engine(WORLD.scheduler(), FaultyRunner(WORLD.shadow(), Faults()), ManualLink(), clock=VirtualClock())


def queued(engine: Engine) -> int:
    return queued_prefill_tokens(engine.scheduler.scheduler.state)


class CountedTokens(array):  # type: ignore[type-arg]
    """Tokens that count how often they are looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


def waits_behind_a_cache() -> tuple[Engine, Request, CountedTokens]:
    """A request of ten pages, all but the last of them cached, waits for a slot. It remembers nothing of the cache."""
    engine = engine_of()
    engine.link.put(Submit(0, PROMPTS[0], resolved(1)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    engine.link.put(*(Submit(number, PROMPTS[number], resolved(60)) for number in (1, 2)))
    while not engine.link.tokens(2):
        engine.step()
    engine.link.put(Submit(3, PROMPTS[0], resolved(1)))
    engine.step()
    request = engine.scheduler.scheduler.state.requests[3]
    request.path = []
    tokens = request.tokens = CountedTokens("i", request.tokens)
    return engine, request, tokens


def test_what_a_request_found_is_not_looked_for_again() -> None:
    """Each query of a router would walk the whole cache of each long prompt that waits, between two steps."""
    engine, _, tokens = waits_behind_a_cache()
    assert queued(engine) == 2
    first = tokens.looks
    assert queued(engine) == 2
    assert tokens.looks == first > 0


def test_what_its_admission_found_is_not_looked_for_again() -> None:
    engine, request, tokens = waits_behind_a_cache()
    assert cached_len(engine.scheduler.scheduler.state.kv, request) == 18
    first = tokens.looks
    assert queued(engine) == 2
    assert tokens.looks == first


def test_what_has_left_the_cache_since_counts_again() -> None:
    """A router would see a replica as idle that has lost its cache."""
    engine, _, _ = waits_behind_a_cache()
    assert queued(engine) == 2
    engine.scheduler.flush_cache()
    assert queued(engine) == 20


def test_a_prompt_counts_until_it_is_computed() -> None:
    """A router would see a replica as busy that has done most of a long prompt, or as idle while prompts wait."""
    engine = engine_of()
    engine.link.put(*(Submit(number, prompt, resolved(20)) for number, prompt in enumerate(PROMPTS)))
    seen = []
    while not engine.is_idle or not seen:
        engine.step()
        seen.append(queued(engine))
    assert seen[:7] == [50, 42, 34, 26, 18, 18, 18], "chunks of 8; the third waits for a slot"
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0


def test_a_waiting_prompt_counts_without_what_is_cached() -> None:
    """Repeated prompts would make their replica look late, and be sent to one that has to compute them."""
    engine = engine_of()
    engine.link.put(Submit(0, PROMPTS[0], resolved(1)))
    engine.step()
    while not engine.is_idle:
        engine.step()
    engine.link.put(*(Submit(number, PROMPTS[number], resolved(60)) for number in (1, 2)))
    while not engine.link.tokens(2):
        engine.step()
    assert queued(engine) == 0
    engine.link.put(Submit(3, PROMPTS[0] + (1,) * 4, resolved(1)), Submit(4, PROMPTS[0], resolved(1), extra_key="salt"))
    engine.step()
    assert queued(engine) == 4 + 20


def test_pages_without_the_state_behind_them_are_not_counted_as_cached() -> None:
    """Of a model with recurrent states: the prompt would be computed again from the last record on."""
    world = World(limits_of(chunk=8, running=2, states=StateLimits(4, 1)), num_pages=128, page_size=2)
    bench = Bench.of(world, world.shadow())
    bench.link.put(Submit(0, PROMPTS[0], resolved(1)))
    bench.drain(50)
    kv = bench.scheduler.state.kv
    assert kv.records is not None
    assert len(kv.match(array("i", PROMPTS[0]), 18, "")) == 9
    assert cached_anywhere(kv, array("i", PROMPTS[0]), 18, "") == 16
    for node in list(kv.tree.nodes()):
        if node.record >= 0:
            kv.records.forget(node)
    assert cached_anywhere(kv, array("i", PROMPTS[0]), 18, "") == 0
