"""Handover: a prompt that one engine has computed continues in another one, whose pages come from the first.

    prefill  = Supervisor(Start(config with --kv-disk FOLDER/NAME), ...)     computes prompts
    decode   = Supervisor(Start(config, remote=FOLDER), ...)                 takes their pages

    1. the prefill engine generates one token
    2. offered(prefill's client, prompt)    says where the prompt's pages are, once they are stored
    3. taken(decode's client, offer)        lets the decode engine load them
    4. the decode engine continues the request, as one that is resumed with that token

`encode_offer` and `decode_offer` take an offer to another process or machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from sluice.engine.messages import OfferPages, PagesOffered, PagesTaken, TakePages
from sluice.process.client import EngineClient
from sluice.process.wire import WireError
from sluice.types import PageOffer

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two looks at what is stored."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PageOffer)


class HandoverError(RuntimeError):
    """An engine offers or takes no pages; the message says why. The other engine can compute the prompt itself."""


async def offered(
    client: EngineClient, tokens: Sequence[int], page_size: int, extra_key: str = "", *, patience: float = 2.0
) -> PageOffer:
    """Return where the pages of a computed prompt are.

    Args:
        client: of the engine that computed it.
        tokens: of the prompt.
        page_size: of that engine.
        patience: seconds to wait for pages that are still being stored. Then the offer lacks them.

    Raises:
        HandoverError: the engine has no page file.
        EngineGone: it died.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + patience, FIRST_PAUSE
    prompt = tuple(tokens)
    while True:
        answer = await client.ask(lambda query_id: OfferPages(query_id, prompt, extra_key))
        assert isinstance(answer, PagesOffered), f"{answer} to an OfferPages"
        if answer.offer is None:
            raise HandoverError(answer.error)
        if len(answer.offer.pages) >= len(prompt) // page_size or loop.time() >= deadline:
            return answer.offer
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def taken(client: EngineClient, offer: PageOffer) -> int:
    """Let an engine load offered pages, and return how many tokens they hold.

    Raises:
        HandoverError: the engine takes no pages, or not these.
        EngineGone: it died.
    """
    answer = await client.ask(lambda query_id: TakePages(query_id, offer))
    assert isinstance(answer, PagesTaken), f"{answer} to a TakePages"
    if answer.error is not None:
        raise HandoverError(answer.error)
    return answer.num_tokens


def encode_offer(offer: PageOffer) -> bytes:
    return _ENCODER.encode(offer)


def decode_offer(data: bytes) -> PageOffer:
    """Return the offer in `data`.

    Raises:
        WireError: it is none.
    """
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise WireError(f"not an offer of pages ({len(data)} bytes): {error}") from error
