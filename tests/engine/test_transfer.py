"""Pages of other engines are taken between two steps, some at a time."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import PagesOffered, PagesTaken, Submit, TakePages
from sluice.engine.transfer import Handover
from sluice.testing import Faults, FaultyRunner, ManualLink, resolved
from sluice.types import PageOffer
from worlds import World, limits_of

WORLD = World(limits_of(chunk=8, running=2), num_pages=128, page_size=2)
OFFER = PageOffer("/x", "layout", ())


class SlowTransfer:
    """Takes every offer in three pieces."""

    def __init__(self) -> None:
        self.left = 3

    def offer(self, tokens: Sequence[int], extra_key: str) -> PageOffer:
        raise ValueError("it offers none")

    def take(self, offer: PageOffer) -> SlowTransfer:
        return self

    def go_on(self) -> int | None:
        self.left -= 1
        return None if self.left else 32


def test_streams_go_on_while_pages_are_taken_and_an_idle_engine_takes_them_all() -> None:
    """The pages of 32,768 tokens stopped every stream for 60 ms."""
    for streams in (0, 1):
        engine = Engine(WORLD.scheduler(), FaultyRunner(WORLD.shadow(), Faults()), ManualLink(), clock=VirtualClock())
        answers: list[PagesOffered | PagesTaken] = []
        engine.handover = Handover(answers.append, SlowTransfer())
        engine.link.put(*[Submit(number, (1, 2, 3), resolved(50)) for number in range(streams)])
        engine.step()
        before = len(engine.link.tokens(0)) if streams else 0
        engine.link.put(TakePages(7, OFFER))
        for _ in range(3):
            assert answers == []
            assert not (engine.handover.is_busy and engine.awaits_message), "it would wait for a message first"
            engine.step()
        assert answers == [PagesTaken(7, 32)]
        assert not engine.handover.is_busy
        assert not streams or len(engine.link.tokens(0)) > before
