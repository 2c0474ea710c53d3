"""The client between two engines: what it keeps, sends again and drops."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recovery_world import arrived, in_a_loop
from serving import run
from sluice.engine.clock import VirtualClock
from sluice.engine.messages import Abort, Message, Submit
from sluice.process.client import MAX_TOGETHER, EngineClient, EngineGone
from sluice.process.delivery import OutputOrderError
from sluice.process.wire import Outputs
from sluice.testing import resolved
from sluice.types import CachedTokens, FinishReason, Output, TokenLogprobs
from submitting import submit

REQUEST = Submit(
    0, (1, 2, 3), replace(resolved(8), prompt_logprobs=0), 2, "tenant", 3, start_deadline=4.0, deadline=5.0
)
LOGPROBS = TokenLogprobs(2, -1.0, ())


def test_a_request_is_sent_again_with_all_that_was_delivered() -> None:
    def test() -> None:
        sent: list[Message] = []
        client = EngineClient(sent.append)
        submit(client, REQUEST)
        client.deliver(Outputs((Output(1, 0, (), 9, prompt_logprobs=(LOGPROBS, LOGPROBS)), Output(1, 0, (7, 8), 9))))
        client.detach("was killed", ())
        client.attach(sent.append, 1)
        first, again = sent
        assert isinstance(first, Submit)
        assert again == replace(first, output_ids=(7, 8), prompt_logprobs_sent=2, is_resumed=True)
        assert (first.start_deadline, first.deadline, first.is_resumed) == (4.0, 5.0, False)

    in_a_loop(test)


def test_a_request_that_another_replica_has_begun_goes_on() -> None:
    def test() -> None:
        sent: list[Message] = []
        client = EngineClient(sent.append)
        begun = replace(REQUEST, output_ids=(7, 8), prompt_logprobs_sent=2, is_resumed=True)
        inbox = submit(client, begun)
        assert sent == [replace(begun, request_id=1)]
        client.dispatch([Output(1, 2, (9,), 0)])
        client.resend(1)
        assert sent[1:] == [replace(begun, request_id=1, output_ids=(7, 8, 9))]
        assert (client.recovery.replayed_requests, client.recovery.replayed_tokens) == (1, 3)
        client.dispatch([Output(1, 3, (10,), 0)])
        assert [output.start for output in arrived(inbox)] == [2, 3]
        client.give_up(1, "no replica")
        assert [output.error for output in arrived(inbox)] == ["no replica"]
        client.resend(1)
        client.give_up(1, "again")
        assert len(sent) == 2

    in_a_loop(test)


def test_cached_tokens_do_not_change() -> None:
    """Another engine has another cache, but `usage` must not change in the middle of a stream."""

    def test() -> None:
        client = EngineClient(lambda message: None)
        inbox = submit(client, REQUEST)
        client.dispatch([Output(1, 0, (7,), 9, num_host_tokens=4, num_disk_tokens=3)])
        client.detach("was killed", ())
        client.attach(lambda message: None, 1)
        client.dispatch([Output(1, 1, (8,), 0)])
        assert [output.cached for output in arrived(inbox)] == [CachedTokens(9, 4, 3)] * 2

    in_a_loop(test)


def test_messages_of_a_dead_engine_are_dropped() -> None:
    """The next engine computes the same token again, so it would be delivered twice."""

    def test() -> None:
        client = EngineClient()
        client.attach(lambda message: None, 1)
        inbox = submit(client, REQUEST)
        client.deliver(Outputs((Output(1, 0, (7,), 0),)), 1)
        client.detach("hung", ())
        client.deliver(Outputs((Output(1, 1, (8,), 0),)), 1)
        client.attach(lambda message: None, 2)
        client.deliver(Outputs((Output(1, 1, (8,), 0),)), 1)
        client.deliver(Outputs((Output(1, 1, (8,), 0),)), 2)
        assert [token for output in arrived(inbox) for token in output.token_ids] == [7, 8]

    in_a_loop(test)


@pytest.mark.parametrize("start", [0, 2])
def test_a_gap_and_a_repetition_are_noticed(start: int) -> None:
    client = EngineClient(lambda message: None)
    submit(client, REQUEST)
    client.dispatch([Output(1, 0, (7,), 0)])
    with pytest.raises(OutputOrderError, match=f"starts at token {start}, but 1 tokens were delivered"):
        client.dispatch([Output(1, start, (8,), 0)])


def test_between_two_engines_requests_wait_and_may_be_closed() -> None:
    def test() -> None:
        sent: list[Message] = []
        client = EngineClient(sent.append)
        first = submit(client, REQUEST)
        client.detach("was killed", ())
        submit(client, REQUEST, REQUEST)
        first.close()
        client.attach(sent.append, 1)
        assert [message.request_id for message in sent if isinstance(message, Submit)] == [1, 2, 3]
        assert [message.is_resumed for message in sent if isinstance(message, Submit)] == [False] * 3
        assert not any(isinstance(message, Abort) for message in sent)

    in_a_loop(test)


async def test_queries_do_not_wait_for_the_next_engine() -> None:
    client = EngineClient(lambda message: None)
    query = asyncio.create_task(client.stats())
    await asyncio.sleep(0)
    client.detach("was killed", ())
    for each in (query, client.stats(), client.flush_cache()):
        with pytest.raises(EngineGone, match="another one is started"):
            await each


def test_a_request_that_kills_engines_ends_with_the_cause() -> None:
    def test() -> None:
        client = EngineClient(lambda message: None)
        inbox = submit(client, REQUEST)
        for epoch in (1, 2, 3):
            client.detach("was killed by signal 9", {1})
            client.attach(lambda message: None, epoch)
        (end,) = arrived(inbox)
        assert end.finish_reason is FinishReason.ERROR
        assert end.error == "the engine died while it worked on this request alone: it was killed by signal 9"
        assert (client.num_open, client.recovery.ended_requests) == (0, 1)

    in_a_loop(test)


def test_a_request_that_kills_engines_no_longer_waits() -> None:
    """It counted as waiting for its first token for good, so refused requests were sent away for longer."""

    def test() -> None:
        clock = VirtualClock()
        client = EngineClient(lambda message: None, clock=clock.now)
        submit(client, REQUEST)
        clock.advance(10)
        for epoch in (1, 2, 3):
            client.detach("was killed", {1})
            client.attach(lambda message: None, epoch)
        submit(client, REQUEST)
        clock.advance(3)
        assert client.retry_after() == 3, "one request waits, since 3 seconds"

    in_a_loop(test)


def test_the_time_to_resume_is_that_of_the_first_stream_that_goes_on() -> None:
    """A new request that is served at once does not count."""

    def test() -> None:
        clock = VirtualClock()
        client = EngineClient(lambda message: None, clock=clock.now)
        submit(client, REQUEST)
        client.dispatch([Output(1, 0, (7, 7), 0)])
        client.detach("was killed", ())
        clock.advance(3)
        submit(client, REQUEST)
        client.attach(lambda message: None, 1)
        client.dispatch([Output(2, 0, (7,), 0)])
        clock.advance(1)
        client.dispatch([Output(1, 2, (7,), 0)])
        clock.advance(1)
        client.dispatch([Output(1, 3, (7,), 0)])
        recovery = client.recovery
        assert (recovery.to_resume.tally().total, recovery.last_resume_seconds) == (4.0, 4.0)
        assert (recovery.replayed_requests, recovery.replayed_tokens) == (1, 2)

    in_a_loop(test)


def test_a_client_that_was_slow_does_not_delay_the_others() -> None:
    """Thousands of outputs that wait for it are handled in parts, with a pass of the event loop between them."""

    async def test() -> None:
        client = EngineClient(lambda message: None)
        inbox = submit(client, REQUEST)
        for number in range(3 * MAX_TOGETHER):
            client.dispatch([Output(inbox.request_ids[0], number, (1,), 0)])
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        sizes = [len(await inbox.get()) for _ in range(3)]
        assert (sizes, passes) == ([MAX_TOGETHER] * 3, 2)
        running.cancel()
        inbox.close()

    run(test)


def test_the_requests_of_a_large_call_are_aborted_in_parts() -> None:
    """To abort 2,000 at once takes a tenth of a second, in which no health check is answered."""

    async def test() -> None:
        sent: list[Message] = []
        client = EngineClient(sent.append)
        inbox = client.submit([replace(REQUEST, request_id=client.next_id()) for _ in range(3 * MAX_TOGETHER)])
        sent.clear()
        inbox.close()
        assert len(sent) == MAX_TOGETHER
        while client.num_open:
            before = len(sent)
            await asyncio.sleep(0)
            assert len(sent) <= before + MAX_TOGETHER
        assert {each.request_id for each in sent if isinstance(each, Abort)} == set(range(1, 3 * MAX_TOGETHER + 1))

    run(test)
