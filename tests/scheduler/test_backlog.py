"""How much prefill an engine has before it."""

from __future__ import annotations

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.scheduler.backlog import queued_prefill_tokens
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from worlds import World, limits_of

WORLD = World(limits_of(chunk=8, running=2), num_pages=128, page_size=2)
PROMPTS = ((0, 1) * 10, (1, 1) * 10, (1, 0, 0) * 6)


def engine_of() -> Engine:
    return Engine(WORLD.scheduler(), FaultyRunner(WORLD.shadow(), Faults()), ManualLink(), clock=VirtualClock())


def queued(engine: Engine) -> int:
    return queued_prefill_tokens(engine.scheduler.scheduler.state)


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
