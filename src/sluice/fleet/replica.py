"""ReplicaServer: what a replica does with the calls of an ingress. Its engine is that of one server."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from sluice.fleet.calls import received
from sluice.fleet.identity import Identity
from sluice.fleet.page_news import PageBook, PageNews
from sluice.process.client import EngineClient, EngineGone
from sluice.process.wire import Failed, WireError, encode, encode_outputs


class ReplicaServer:
    """Serves the calls of ingresses with an engine.

    Args:
        client: of the engine.
        identity: its own.
        pages: what its prefix cache holds; None: that is not followed.
    """

    def __init__(self, client: EngineClient, identity: Identity, pages: PageBook | None = None) -> None:
        self._client = client
        self._identity = identity
        self._pages = pages

    async def stream(self, data: bytes) -> AsyncGenerator[bytes, None]:
        """Serve a request, and yield its outputs, or why this replica cannot go on with it, in the form of `wire`.

        To close the generator aborts the request.

        Args:
            data: a pickled `Call`.
        """
        try:
            sent = received(data)
            if (reason := self._identity.difference(sent.identity)) is not None:
                yield encode(Failed(reason))
                return
            request = sent.request(self._client.now())
            inbox = self._client.submit([request])
        except (EngineGone, msgspec.DecodeError, WireError) as error:
            yield encode(Failed(str(error)))
            return
        try:
            while True:
                outputs = [each._replace(request_id=request.request_id) for each in await inbox.get()]
                yield encode_outputs(outputs)
                if outputs[-1].finish_reason is not None:
                    return
        except EngineGone as error:
            yield encode(Failed(str(error)))
        finally:
            inbox.close()

    def news(self, first: int) -> PageNews | None:
        """Return what has changed in the prefix cache, from a change of this number on; None: that is not followed."""
        return None if self._pages is None else self._pages.news(first)

    async def stats(self, *, flush: bool) -> bytes | None:
        """Return the state of the engine, in the form of `wire`; None while there is none."""
        try:
            return encode(await (self._client.flush_cache() if flush else self._client.stats()))
        except EngineGone:
            return None
