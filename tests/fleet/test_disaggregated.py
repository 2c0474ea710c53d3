"""Prompts that prefill replicas compute: whatever is lost on the way, the answer is that of one replica."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fleet_world import OURS, FleetWorld, Replica, outputs_of
from random_checkpoint import random_checkpoint
from shadow_engine import VOCAB
from sluice.assembly.engine import build_engine
from sluice.assembly.peers import Peers
from sluice.config import EngineConfig
from sluice.engine.clock import VirtualClock
from sluice.engine.engine import Engine
from sluice.engine.messages import PagesOffered, PagesTaken
from sluice.fleet.calls import Sent
from sluice.fleet.ingress import replica_metrics
from sluice.fleet.transfer_file import TransferFile, decode_engine, prefill_engine
from sluice.http.observe.engine_metrics import Page
from sluice.process.handover import encode_offer
from sluice.process.observer import Observer
from sluice.process.wire import encode
from sluice.routing.split import SplitLimits
from sluice.testing import ManualLink, oracle, resolved
from sluice.types import FinishReason, Output, PageOffer, Submit
from submitting import submit

LEAST = 12
STREAMS, TOKENS = 16, 12


def request(number: int, tokens: int = TOKENS) -> Submit:
    """Return a request of its own prompt and seed; every third one is short."""
    length = 5 if number % 3 == 0 else LEAST + number
    prompt = tuple(1 + (number * 7 + place) % (VOCAB - 1) for place in range(length))
    return Submit(0, prompt, replace(resolved(tokens), seed=number))


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def expected(asked: Submit) -> list[int]:
    return list(oracle(asked.prompt, asked.sampling, vocab_size=VOCAB))


async def world_of(prefill: tuple[str, ...] = ("p", "q"), patience: float = 300.0) -> FleetWorld:
    """Return a fleet that knows its replicas."""
    world = FleetWorld(["a", "b"], prefill=prefill, limits=SplitLimits(LEAST), patience=patience)
    watching = asyncio.create_task(world.link.watch(1.0))
    for _ in range(9):
        await world.turn()
    watching.cancel()
    await asyncio.wait({watching})
    return world


async def play(world: FleetWorld, on_turn: Callable[[int], None] = lambda turn: None) -> list[list[int]]:
    inboxes = [submit(world.client, request(number)) for number in range(STREAMS)]
    turn = 0
    while world.client.num_open:
        on_turn(turn)
        await world.turn()
        turn += 1
        assert turn < 5000, "the streams do not end"
    await world.turn()
    return [tokens_of(await outputs_of(inbox)) for inbox in inboxes]


def way_of(world: FleetWorld, request_id: int) -> list[str]:
    return [key for each, key in world.sent_to if each == request_id]


async def test_long_prompts_begin_at_a_prefill_replica_and_go_on_at_one_that_decodes() -> None:
    world = await world_of()
    assert await play(world) == [expected(request(number)) for number in range(STREAMS)]
    ways = [way_of(world, request_id) for request_id in sorted({each for each, _ in world.sent_to})]
    for number, way in enumerate(ways):
        where = ["pq", "ab"] if number % 3 else ["ab"]
        assert len(way) == len(where)
        assert all(key in keys for key, keys in zip(way, where, strict=True))
    assert {way[0] for way in ways} == set("pqab"), "both of each kind have something to do"
    assert world.client.recovery.replayed_requests == 0
    apart = world.link._apart
    assert apart is not None
    assert apart.failed_handovers == 2 * STREAMS // 3, "these engines have no disk"
    page = Page("shadow")
    replica_metrics(world.chooser, world.link.totals, apart)(page)
    assert f'sluice:failed_handovers_total{{engine="0",model_name="shadow"}} {apart.failed_handovers}.0' in str(
        page.render(), "utf-8"
    )
    for chooser in (apart.chooser, world.chooser):
        assert [load.order for load in chooser._dispatcher.loads.values()] == [(0, 0)] * 2


@pytest.mark.parametrize("seed", range(6))
async def test_lost_replicas_of_either_kind_cost_no_token(seed: int) -> None:
    """Before the first token, between it and the handover, and behind it."""
    world = await world_of()
    assert world.prefill is not None
    world.draw.seed(seed)
    moments = sorted(world.draw.sample(range(30), 4))

    def on_turn(turn: int) -> None:
        if turn not in moments:
            return
        kind = world.draw.choice([world.replicas, world.prefill.replicas])
        if kind:
            kind.pop(world.draw.choice(list(kind))).died.set()
        if not world.replicas or world.draw.random() < 0.5:
            world.add(Replica(f"after {turn}"))

    assert await play(world, on_turn) == [expected(request(number)) for number in range(STREAMS)]
    assert world.client.recovery.ended_requests == 0


async def test_a_prefill_replica_that_takes_nothing_keeps_no_request() -> None:
    """Its process has gone, and the ingress does not know that yet."""
    world = await world_of(("p",), patience=0.05)
    assert world.prefill is not None
    world.prefill.replicas.clear()
    inbox = submit(world.client, request(1))
    await world.settle(100_000)
    assert tokens_of(await outputs_of(inbox)) == expected(request(1))


@pytest.mark.parametrize("reason", [FinishReason.OVERLOAD, FinishReason.TIER_UNAVAILABLE])
async def test_a_prompt_that_a_prefill_replica_has_no_room_for_is_computed_where_it_is_decoded(
    reason: FinishReason,
) -> None:
    world = await world_of(("p",))
    assert world.prefill is not None
    replica = world.prefill.replicas["p"]
    inbox = submit(world.client, request(1))
    for _ in range(8):
        await asyncio.sleep(0)
    (number,) = replica.client._open
    replica.client.dispatch([Output(number, 0, (), 0, reason)])
    for _ in range(30):
        await asyncio.sleep(0)
    (entry,) = [entry for each in world.replicas.values() for entry in each.client._open.values()]
    assert not entry.delivery.request.is_resumed, "a full replica may refuse it"
    await world.settle()
    assert tokens_of(await outputs_of(inbox)) == expected(request(1))
    assert [key in "ab" for _, key in world.sent_to] == [False, True]
    assert world.link._offers == {}


async def test_a_client_that_leaves_during_the_handover_leaves_nothing_behind() -> None:
    world = await world_of()
    assert world.prefill is not None
    inbox = submit(world.client, request(1))
    for tick in range(2000):
        await asyncio.sleep(0)
        if tick % 8 == 0:
            for replica in world.prefill.replicas.values():
                replica.turn()
        if world.link._offers:
            break
    assert world.link._offers, "it was not handed over"
    inbox.close()
    for _ in range(4):
        await world.turn()
    assert (world.link._offers, world.link._serving) == ({}, {})


async def test_prefill_replicas_alone_do_not_serve() -> None:
    world = await world_of()
    watching = asyncio.create_task(world.link.watch(1.0))
    found = []
    for change in (lambda: None, world.replicas.clear):
        change()
        for _ in range(9):
            await world.turn()
        found.append(world.state.is_serving)
    watching.cancel()
    await asyncio.wait({watching})
    assert found == [True, False]


async def test_deadlines_count_the_time_that_pages_take() -> None:
    found: list[float | None] = []

    class Seen(Observer):
        def submitted(self, request: Submit) -> None:
            found.append(request.deadline)

    world = await world_of()
    client, clock = world.replicas["a"].client, VirtualClock(50.0)
    client.now, client._observer = clock.now, Seen()
    offer = encode_offer(PageOffer("/x", "layout", ()))
    asked = replace(request(1), request_id=1, deadline=105.0)
    sent = Sent(OURS, 100.0, encode(asked), offer)
    serving = asyncio.create_task(anext(world.replicas["a"].server.stream(msgspec.msgpack.encode(sent))))
    await asyncio.sleep(0)
    clock.advance(3.0)
    for _ in range(20):
        await world.turn()
    await serving
    assert found == [55.0]


async def test_a_request_that_ends_with_its_first_token_ends_at_the_prefill_replica() -> None:
    world = await world_of()
    (first, *_) = expected(request(1))
    stopped = replace(request(1), sampling=replace(resolved(TOKENS, stop_token_ids=[first]), seed=1))
    for asked, reason in ((request(1, 1), FinishReason.LENGTH), (stopped, FinishReason.STOP)):
        world.sent_to.clear()
        inbox = submit(world.client, asked)
        await world.settle()
        outputs = await outputs_of(inbox)
        assert tokens_of(outputs) == [first]
        assert outputs[-1].finish_reason is reason
        assert [key in "pq" for _, key in world.sent_to] == [True]


async def test_the_pages_of_a_prompt_are_loaded_where_it_is_decoded(tmp_path: Path) -> None:
    """Without them all the rest would be right as well, and every prompt would be computed twice."""
    folder = random_checkpoint(tmp_path)
    options = {"model": str(folder), "max_total_tokens": 512, "page_size": 16, "kv_disk_bytes": 8 << 20}
    config, file = EngineConfig.from_options(options), TransferFile(tmp_path)

    def built(own: EngineConfig, remote: Path | None) -> Callable[..., Engine]:
        def build(link: ManualLink, answer: Callable[[PagesOffered | PagesTaken], None]) -> Engine:
            return build_engine(own, link, progress=False, peers=Peers(answer=answer, remote=remote))[0]

        return build

    prompt = tuple(7 + (11 * position) % 300 for position in range(150))

    async def answer(world: FleetWorld, salt: str) -> list[int]:
        inbox = world.client.submit([Submit(world.client.next_id(), prompt, resolved(TOKENS), extra_key=salt)])
        await world.settle(100_000)
        return tokens_of(await outputs_of(inbox))

    world = FleetWorld([], prefill=[], limits=SplitLimits(LEAST))
    prefill = Replica("p", build=built(prefill_engine(config, file.path), None))
    decode = Replica("a", build=built(decode_engine(config), tmp_path))
    world.add(prefill)
    alone = await answer(world, "alone")
    assert world.prefill is not None
    world.prefill.replicas["p"] = world.replicas.pop("p")
    world.add(decode)
    watching = asyncio.create_task(world.link.watch(1.0))
    for _ in range(9):
        await world.turn()
    watching.cancel()
    await asyncio.wait({watching})
    world.sent_to.clear()
    assert await answer(world, "tenant") == alone
    assert [key for _, key in world.sent_to] == ["p", "a"]
    (use,) = decode.engine.scheduler.occupancy().tiers
    assert (use.loaded, use.failed_loads) == (len(prompt) // 16, 0)
    for replica in (prefill, decode):
        with closing(replica.engine):
            pass


def test_each_prefill_replica_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The next one takes that of a replica that was killed, and none is left behind by one that ended."""
    first, second = TransferFile(tmp_path), TransferFile(tmp_path)
    second.path.touch()
    assert first.path != second.path
    first.close()
    third = TransferFile(tmp_path)
    assert third.path == first.path
    second.close()
    assert not second.path.exists()
    with pytest.raises(OSError, match="none"):
        TransferFile(tmp_path / "none")


def test_a_folder_may_be_shared_with_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill replicas that never start beside another user's, or that write prompts where that user wants them."""
    (tmp_path / "sluice-prefill-0.lock").touch(mode=0)
    (tmp_path / "sluice-prefill-1.lock").symlink_to("elsewhere")

    def as_not_root(path: Path, flags: int, mode: int = 0) -> int:
        if path.exists() and path.stat().st_mode & 0o777 == 0:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return system_open(path, flags, mode)

    system_open = os.open
    monkeypatch.setattr(os, "open", as_not_root)
    file = TransferFile(tmp_path)
    assert file.path == tmp_path / "sluice-prefill-2.kv"
    file.close()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_page_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The KV of prompts, where whoever can write to the folder wants to read it."""
    path = tmp_path / "sluice-prefill-0.kv"
    with monkeypatch.context() as patched:
        if kind == "link":
            path.symlink_to("elsewhere")
        else:
            path.touch()
            patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(OSError, match=r"remove sluice-prefill-0.kv, which is a link or another user's"):
            TransferFile(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    file = TransferFile(tmp_path)
    assert file.path == path, "the lock was not kept"
    file.close()


def test_a_folder_in_which_nothing_can_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that tries number after number for ever."""

    def refuse(path: Path, flags: int, mode: int = 0) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        TransferFile(tmp_path)
