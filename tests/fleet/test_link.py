"""Streams over replicas that die, leave, and are of another model: told tokens never change, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from fleet_world import THEIRS, FleetWorld, Replica, outputs_of
from shadow_engine import NUM_PAGES, VOCAB
from sluice.fleet.link import MAX_LOSSES
from sluice.fleet.replica_router import AVOID_SECONDS
from sluice.process.wire import WireError
from sluice.testing import oracle, resolved
from sluice.types import FinishReason, Output, Submit
from submitting import submit

STREAMS, TOKENS = 24, 20


def request(number: int, tokens: int = TOKENS) -> Submit:
    """Return a request of its own prompt and seed."""
    prompt = tuple(1 + (number * 7 + place) % (VOCAB - 1) for place in range(5 + number % 9))
    return Submit(0, prompt, replace(resolved(tokens), seed=number))


def expected(asked: Submit) -> list[int]:
    return list(oracle(asked.prompt, asked.sampling, vocab_size=VOCAB))


def tokens_of(outputs: list[Output]) -> list[int]:
    for before, after in pairwise(outputs):
        assert after.start == before.start + len(before.token_ids)
    return [token for output in outputs for token in output.token_ids]


async def play(world: FleetWorld, on_turn: Callable[[int], None] = lambda turn: None) -> list[list[Output]]:
    """Serve all streams, and return their outputs."""
    inboxes = [submit(world.client, request(number)) for number in range(STREAMS)]
    turn = 0
    while world.client.num_open:
        on_turn(turn)
        await world.turn()
        turn += 1
        assert turn < 5000, "the streams do not end"
    found = [await outputs_of(inbox) for inbox in inboxes]
    await world.link.close()
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_killed_replicas_lose_no_token(seed: int) -> None:
    world = FleetWorld(seed=seed)
    moments = sorted(world.draw.sample(range(1, 40), 5))

    def on_turn(turn: int) -> None:
        if turn in moments:
            world.kill(world.draw.choice(list(world.replicas)))
            if world.draw.random() < 0.7 or not world.replicas:
                world.add(Replica(f"after {turn}"))

    found = await play(world, on_turn)
    assert [tokens_of(outputs) for outputs in found] == [expected(request(each)) for each in range(STREAMS)]
    assert world.client.recovery.replayed_tokens > 0
    assert world.client.recovery.ended_requests == 0


async def test_a_rolling_update_loses_no_token() -> None:
    """Replicas get no new requests, finish theirs, and leave; the ingress of the old version keeps those of the new one
    out, whose weights are others."""
    world = FleetWorld()
    leaving = [("a", 4), ("b", 8)]

    def on_turn(turn: int) -> None:
        for key, moment in leaving:
            if turn == moment:
                world.add(Replica(f"new {key}", THEIRS, version="2"))

    found = await play(world, on_turn)
    assert [tokens_of(outputs) for outputs in found] == [expected(request(each)) for each in range(STREAMS)]
    assert all(not key.startswith("new") for _, key in world.sent_to)


async def test_a_stream_goes_on_only_where_the_weights_are_the_same() -> None:
    world = FleetWorld(["a"])
    inbox = submit(world.client, request(3))
    for _ in range(5):
        await world.turn()
    world.add(Replica("other", THEIRS))
    world.kill("a")
    for _ in range(5):
        await world.turn()
    world.add(Replica("b"))
    await world.settle()
    assert tokens_of(await outputs_of(inbox)) == expected(request(3))
    assert world.replicas["other"].client.num_open == 0


async def test_a_request_that_loses_every_replica_fails() -> None:
    """Its replicas die before it gets a token: it must not end all there are, and its client gets a reason."""
    world = FleetWorld(["0"])
    inbox = submit(world.client, request(1))
    count = 0
    while world.client.num_open:
        for _ in range(6):
            await asyncio.sleep(0)
        if len(world.sent_to) > count:
            world.kill(world.sent_to[-1][1])
            count = len(world.sent_to)
            world.add(Replica(str(count)))
    (last,) = await outputs_of(inbox)
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None
    assert f"no replica could serve it ({MAX_LOSSES + 1} tried" in last.error
    assert "was killed" in last.error


async def test_a_request_that_its_client_leaves_is_aborted_at_the_replica() -> None:
    world = FleetWorld(["a"])
    inbox = submit(world.client, request(1, tokens=100))
    for _ in range(4):
        await world.turn()
    assert world.replicas["a"].client.num_open == 1
    inbox.close()
    for _ in range(4):
        await world.turn()
    assert world.replicas["a"].client.num_open == 0
    assert world.chooser.replicas == ["a"]


async def test_a_router_is_told_what_replicas_have_to_do() -> None:
    """One of them is busy with what another ingress has sent: a new request goes to the other one."""
    world = FleetWorld(["busy", "free"], router="expected-ttft")
    for number in range(40):
        submit(world.replicas["busy"].client, request(number))
    watching = asyncio.create_task(world.link.watch(1.0))
    for _ in range(3):
        await world.turn()
    for number in range(4):
        submit(world.client, request(number + 50))
    await world.turn()
    watching.cancel()
    await asyncio.wait({watching})
    assert {key for _, key in world.sent_to} == {"free"}
    await world.settle()


async def test_deadlines_are_of_the_replicas_clock() -> None:
    """Clocks of two machines begin at different moments."""
    world = FleetWorld([])
    world.add(Replica("a", clock_offset=50.0))
    now = world.clock.now()
    submit(world.client, replace(request(1), start_deadline=now + 4, deadline=now + 9, arrived=int(now * 1e6)))
    for _ in range(8):
        await asyncio.sleep(0)
    (delivery,) = [each.delivery for each in world.replicas["a"].client._open.values()]
    there = delivery.request
    assert (there.start_deadline, there.deadline, there.arrived) == (54.0, 59.0, 50_000_000)


async def test_the_state_of_a_fleet_is_the_sum_of_its_replicas() -> None:
    world = FleetWorld(router="round-robin")
    await play(world)
    asking = asyncio.create_task(world.client.stats())
    while not asking.done():
        await world.turn()
    stats = asking.result()
    assert stats.occupancy.total_pages == 3 * NUM_PAGES
    before = stats.totals.decode_tokens
    world.kill("a")
    asking = asyncio.create_task(world.client.stats())
    while not asking.done():
        await world.turn()
    assert asking.result().totals.decode_tokens == before
    assert asking.result().occupancy.total_pages == 2 * NUM_PAGES


async def test_a_replica_that_gave_up_gets_no_second_request_while_others_serve() -> None:
    """It fails each request at once, so its load looks the least, and it seems to have the prompt in its cache."""
    world = FleetWorld(["a", "b"])
    world.replicas["a"].client.fail("its engine gave up")
    for number in range(6):
        inbox = submit(world.client, request(number % 2))
        await world.settle()
        assert tokens_of(await outputs_of(inbox)) == expected(request(number % 2))
    assert [key for _, key in world.sent_to].count("a") == 1
    assert world.link._losses == {}


async def test_a_request_does_not_return_to_a_replica_that_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when others are sent there again."""
    world = FleetWorld(["a", "b"])

    async def pause(seconds: float) -> None:
        world.clock.advance(AVOID_SECONDS)

    monkeypatch.setattr(world.link, "_sleep", pause)
    world.replicas["a"].client.fail("its engine gave up")
    submit(world.client, request(1))
    await world.settle()
    assert [key for _, key in world.sent_to] == ["a", "b"]


@pytest.mark.parametrize(
    ("failure", "words"),
    [(RuntimeError("surprise"), "surprise"), (asyncio.CancelledError(), "cancelled")],
)
async def test_a_call_that_fails_in_an_unknown_way_is_sent_again(
    failure: BaseException, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = FleetWorld(["a"])
    world.failures = [failure]
    inbox = submit(world.client, request(1))
    await world.settle()
    assert tokens_of(await outputs_of(inbox)) == expected(request(1))
    assert words in caplog.text


async def test_a_request_that_no_replica_takes_fails_when_the_patience_ends() -> None:
    world = FleetWorld([], patience=0.0)
    inbox = submit(world.client, request(1))
    await asyncio.sleep(0)
    world.clock.advance(7.0)
    (last,) = await inbox.get()
    assert (last.finish_reason, world.client.num_open) == (FinishReason.ERROR, 0)
    assert last.error == "no replica could serve it (1 tried in 7 s); the last time: no replica has taken it"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (replace(request(1), start_deadline=1000.0), FinishReason.EXPIRED),
        (replace(request(1), start_deadline=1000.0, output_ids=(1, 2)), None),
        (replace(request(1), deadline=1000.0), FinishReason.TIMEOUT),
    ],
)
async def test_a_request_without_a_replica_ends_at_its_deadline(asked: Submit, reason: FinishReason | None) -> None:
    world = FleetWorld([])
    inbox = submit(world.client, asked)
    for _ in range(40):
        await asyncio.sleep(0)
    assert world.client.num_open == (reason is None)
    if reason is not None:
        assert [each.finish_reason for each in await outputs_of(inbox)] == [reason]
    await world.link.close()


async def test_a_replica_that_has_a_request_may_take_its_time() -> None:
    """The patience is for requests that no replica has."""
    world = FleetWorld(["a"], patience=0.0)
    inbox = submit(world.client, request(1))
    for _ in range(40):
        await asyncio.sleep(0)
    await world.settle()
    assert tokens_of(await outputs_of(inbox)) == expected(request(1))


async def test_a_fleet_is_ready_while_a_replica_answers() -> None:
    """An answer that cannot be read, or a question that is cancelled, does not end the looks."""
    world = FleetWorld(["a"])
    watching = asyncio.create_task(world.link.watch(1.0))
    found = []
    for change in (lambda: None, lambda: world.kill("a"), lambda: world.add(Replica("b"))):
        world.failures = [WireError("not a message"), asyncio.CancelledError()]
        change()
        for _ in range(3):
            await world.turn()
        found.append(world.state.is_serving)
    assert found == [True, False, True]
    assert world.chooser.replicas == ["b"]
    watching.cancel()
    await asyncio.wait({watching})


async def test_a_question_is_answered_whatever_replicas_say() -> None:
    world = FleetWorld(["a"])
    found = []
    for failures in ([], [WireError("not a message")]):
        world.failures = failures
        asking = asyncio.create_task(world.client.stats())
        for _ in range(3):
            await world.turn()
        found.append(asking.result().occupancy.total_pages)
    assert found == [NUM_PAGES, NUM_PAGES]
