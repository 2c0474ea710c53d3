"""Headers, bodies and tokens of answers are small pieces, each of which is sent at once."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest

from sluice.http.edge.listening import listen

HOSTS = ["127.0.0.1", *(["::1"] if socket.has_ipv6 else [])]


@pytest.mark.parametrize("host", HOSTS)
def test_a_piece_does_not_wait_until_the_client_has_confirmed_the_one_before(host: str) -> None:
    """On a connection that was kept open, each body came 40 ms after its headers, and tokens came in groups."""
    assert asyncio.run(is_sent_at_once(host))


async def is_sent_at_once(host: str) -> bool:
    """Return whether a connection to a listening socket, as asyncio accepts it, sends pieces at once."""
    accepted = asyncio.get_running_loop().create_future()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer)

    listener = listen(host, 0)
    async with await asyncio.start_server(on_connection, sock=listener):
        with closing(socket.create_connection(listener.getsockname()[:2])):
            writer: asyncio.StreamWriter = await accepted
            found = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            await writer.wait_closed()
            return bool(found)
