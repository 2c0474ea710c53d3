"""ReplicaServer: what a replica does with the calls of an ingress. Its engine is that of one server."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from sluice.engine.messages import PagesOffered
from sluice.fleet.calls import received
from sluice.fleet.disaggregated import needs_decode, prefill_request
from sluice.fleet.identity import Identity
from sluice.fleet.kv_event_sync import KvChanges, KvEventLog
from sluice.process.client import EngineClient, EngineGone
from sluice.process.handover import HandoverError, decode_offer, offered, taken
from sluice.process.wire import Failed, WireError, encode, encode_outputs
from sluice.types import Submit

LOGGER = logging.getLogger("sluice.fleet")
STORING_SECONDS = 0.5
"""Seconds to wait until the pages of a prompt are stored, before it is handed over without those that are not."""


class ReplicaServer:
    """Serves the calls of ingresses with an engine.

    Args:
        client: of the engine.
        identity: its own.
        page_size: tokens of a page of the engine.
        pages: what its prefix cache holds; None: that is not followed.
    """

    def __init__(
        self, client: EngineClient, identity: Identity, page_size: int, pages: KvEventLog | None = None
    ) -> None:
        self._client = client
        self._identity = identity
        self._page_size = page_size
        self._pages = pages

    async def stream(self, data: bytes) -> AsyncGenerator[bytes, None]:
        """Serve a request, and yield its outputs, or why this replica cannot continue it, in the form of `wire`.

        A request that is to be handed over ends with its first token, or continues elsewhere: then the place of its
        pages follows (`PagesOffered`).

        To close the generator aborts the request.

        Args:
            data: a pickled `Call`.
        """
        try:
            sent = received(data)
            if (reason := self._identity.difference(sent.identity)) is not None:
                yield encode(Failed(reason))
                return
            request = sent.request(self._client.now())  # before the pages are taken: its deadlines count that time
            await self._take(sent.offer)
            own = replace(request, request_id=self._client.next_id())
            inbox = self._client.submit([prefill_request(own) if sent.hands_over else own])
        except (EngineGone, msgspec.DecodeError, WireError) as error:
            yield encode(Failed(str(error)))
            return
        try:
            while True:
                outputs = [each._replace(request_id=request.request_id) for each in await inbox.get()]
                if sent.hands_over and needs_decode(request, outputs[-1]):
                    yield encode_outputs([*outputs[:-1], outputs[-1]._replace(finish_reason=None)])
                    yield encode(await self._offer(request))
                    return
                yield encode_outputs(outputs)
                if outputs[-1].finish_reason is not None:
                    return
        except EngineGone as error:
            yield encode(Failed(str(error)))
        finally:
            inbox.close()

    async def _offer(self, request: Submit) -> PagesOffered:
        """Return where the pages of a computed prompt are stored.

        Raises:
            EngineGone: the engine died.
        """
        tokens, size = request.tokens(), self._page_size
        try:
            return PagesOffered(
                0, await offered(self._client, tokens, size, request.namespace, patience=STORING_SECONDS)
            )
        except HandoverError as error:
            return PagesOffered(0, None, str(error))

    async def _take(self, offer: bytes) -> None:
        """Let the engine load the pages of an offer, if there is one. What it does not take, it computes."""
        if not offer:
            return
        try:
            await taken(self._client, decode_offer(offer))
        except (HandoverError, EngineGone, WireError) as error:
            LOGGER.warning("the pages of a prompt are computed again: %s", error)

    def changes(self, first: int) -> KvChanges | None:
        """Return what has changed in the prefix cache, from a change of this number on; None: that is not followed."""
        return None if self._pages is None else self._pages.changes(first)

    async def stats(self, *, flush: bool) -> bytes | None:
        """Return the state of the engine, in the form of `wire`; None while there is none."""
        try:
            return encode(await (self._client.flush_cache() if flush else self._client.stats()))
        except EngineGone:
            return None
