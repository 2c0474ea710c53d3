"""Messages from other threads wake a loop that waits, and requests travel without what they share."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import zmq

from sluice.config import EngineConfig
from sluice.engine.messages import Copied
from sluice.process.client import EngineClient
from sluice.process.socket_folder import SocketFolder
from sluice.process.wire import Start
from sluice.process.zmq_link import Mailbox, ZmqChannel, ZmqLink
from sluice.testing import resolved
from sluice.types import CopyDone, Submit
from submitting import submit

CONFIG = EngineConfig.from_options({"model": "a folder"})


def copied(ticket: int) -> Copied:
    return Copied((CopyDone(ticket),))


def test_it_is_readable_while_it_holds_something() -> None:
    """With a byte too many in the pipe the loop would spin, with one too few it would sleep beside a message."""
    box = Mailbox()
    for ticket in (1, 2):
        box.post(copied(ticket))
    assert select.select([box], [], [], 0)[0] == [box]
    assert box.take() == [copied(1), copied(2)]
    assert select.select([box], [], [], 0)[0] == []
    assert box.take() == []
    box.close()
    box.post(copied(3))


def test_a_loop_that_waits_for_messages_wakes_for_a_copy() -> None:
    """With nothing to compute, only a posted message shows the loop that a page was read from the disk."""
    folder = SocketFolder.fresh()
    link = ZmqLink(folder)
    try:
        assert link.receive(block=True, timeout=0.01) == []
        thread = threading.Thread(target=link.post, args=(copied(7),))
        thread.start()
        assert link.receive(block=True) == [copied(7)]
        thread.join()
    finally:
        link.close()
        folder.remove()


def test_a_mailbox_is_not_closed_during_a_write() -> None:
    """Between the check that it is open and the write, another file could get its descriptor."""

    class Watched(Mailbox):
        closes_meanwhile = False

        def _notify(self) -> None:
            closing = threading.Thread(target=self.close)
            closing.start()
            closing.join(0.05)
            self.closes_meanwhile = not closing.is_alive()
            super()._notify()

    box = Watched()
    box.post(copied(1))
    assert not box.closes_meanwhile
    box.post(copied(2))  # dropped if it is closed by now
    box.close()
    box.close()


@pytest.fixture
def folder() -> Iterator[SocketFolder]:
    folder = SocketFolder.fresh()
    yield folder
    folder.remove()


def calls() -> list[Submit]:
    """Two calls of 100 choices each: those of a call share a prompt and 3,000 biases."""
    prompts = tuple(range(500)), tuple(range(400))
    samplings = [replace(resolved(5), logit_bias=dict.fromkeys(range(first, 3000 + first), 1.0)) for first in (0, 7)]
    firsts = [Submit(0, *shared) for shared in zip(prompts, samplings, strict=True)]
    return [replace(first, sample_index=index) for first in firsts for index in range(100)]


async def test_what_choices_share_travels_once(folder: SocketFolder) -> None:
    """300 choices with 3,000 biases each were 11 MiB, and took the engine 2.4 s to decode."""
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.bind(folder.requests)
        with closing(ZmqChannel(folder)) as channel:
            submit(EngineClient(channel.send), *calls())
            num_bytes = sum(len(receiver.recv()) for _ in calls())
    assert num_bytes < 200_000


async def test_a_channel_that_is_closed_cancels_who_receives(folder: SocketFolder) -> None:
    """The server may be at work on a message when it closes the engine, and receive the next one behind that."""
    channel = ZmqChannel(folder)
    channel.close()
    with pytest.raises(asyncio.CancelledError):
        await channel.receive()


async def test_requests_arrive_whole_at_each_engine(folder: SocketFolder) -> None:
    """An engine that follows another has received nothing yet of what its requests share."""
    client = EngineClient()
    submit(client, *calls())
    expected = [replace(call, request_id=number) for number, call in enumerate(calls(), 1)]
    for epoch in (0, 1):
        with closing(ZmqLink(folder)) as link, closing(ZmqChannel(folder)) as channel:
            channel.send(Start(CONFIG, epoch=epoch))
            link.receive_start()
            client.attach(channel.send, epoch)
            received: list[Submit] = []
            while len(received) < len(expected):
                received += [message for message in link.receive(block=True) if isinstance(message, Submit)]
            assert received == [replace(request, is_resumed=epoch > 0) for request in expected]
            assert len({id(request.prompt) for request in received}) == 2
            assert len({id(request.sampling.logit_bias) for request in received}) == 2
        client.detach("died", ())
