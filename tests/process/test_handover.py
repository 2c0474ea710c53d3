"""What a prompt's pages are asked for, and the answers; `tests/assembly/test_handover.py` has the engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.engine.messages import Message, OfferPages, PagesOffered, PagesTaken, TakePages
from sluice.process.handover import HandoverError, decode_offer, encode_offer, offered, taken
from sluice.process.queries import Answer, Queries
from sluice.process.wire import WireError
from sluice.types import PageKey, PageOffer, StoredPage

PROMPT = (1, 2, 3, 4, 5)
PAGES = tuple(StoredPage(page, PageKey(b"%d" % page, b"", (1, 2), "salt"), 7) for page in range(2))
OFFER = PageOffer("/a", "layout", PAGES)


class Client:
    """Answers as it is told."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Message] = []
        self._answers = list(answers)

    async def ask(self, query: Callable[[int], Message]) -> Answer:
        self.asked.append(query(9))
        return self._answers.pop(0)


async def test_an_offer_waits_for_the_stores() -> None:
    """An offer that is made as soon as the prompt is computed lacks the pages that are on their way to the disk."""
    early = PagesOffered(9, OFFER._replace(pages=PAGES[:1]))
    client = Client(early, early, PagesOffered(9, OFFER))
    assert await offered(client, PROMPT, 2, "salt") == OFFER
    assert client.asked == [OfferPages(9, PROMPT, "salt")] * 3
    assert await offered(Client(early), PROMPT, 2, patience=0.0) == early.offer


async def test_an_offer_is_taken() -> None:
    client = Client(PagesTaken(9, 4))
    assert await taken(client, OFFER) == 4
    assert client.asked == [TakePages(9, OFFER)]


async def test_engines_that_hand_nothing_over_say_why() -> None:
    with pytest.raises(HandoverError, match="no page file"):
        await offered(Client(PagesOffered(9, None, "no page file")), PROMPT, 2)
    with pytest.raises(HandoverError, match="other weights"):
        await taken(Client(PagesTaken(9, error="other weights")), OFFER)


def test_offers_as_bytes() -> None:
    assert decode_offer(encode_offer(OFFER)) == OFFER
    with pytest.raises(WireError, match="not an offer of pages"):
        decode_offer(encode_offer(OFFER)[:-1])


async def test_an_answer_goes_to_its_query() -> None:
    queries = Queries()
    queries.answered(PagesTaken(5, 1))  # of one that has given up
    found = await queries.ask(lambda message: queries.answered(PagesTaken(3, 7)), 3, TakePages(3, OFFER))
    assert found == PagesTaken(3, 7)
    with pytest.raises(OSError, match="gone"):
        await queries.ask(lambda message: queries.fail(OSError("gone")), 4, TakePages(4, OFFER))
