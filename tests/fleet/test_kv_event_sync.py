"""What ingresses know of replicas' caches: what these hold, whatever was sent, missed or asked twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from fleet_world import OURS, FleetWorld
from shadow_engine import PAGE_SIZE, VOCAB
from sluice.fleet.kv_event_sync import AT_ONCE, EVERYTHING, KvChanges, KvEventLog
from sluice.fleet.replica_router import ReplicaCandidate, ReplicaRouter
from sluice.kv.digests import page_digests
from sluice.kv.events import PageEvent, PagesCleared, PagesRemoved, PagesStored
from sluice.process.kv_events.wire import EventBatch, encode_batch
from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import TOLD, RouterOptions, make_policy
from sluice.routing.prefixes import PrefixIndex
from sluice.testing import resolved
from sluice.types import Submit, Tier
from submitting import submit


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stored(*numbers: int, tier: Tier = Tier.DEVICE) -> PagesStored:
    return PagesStored(None, tuple(map(digest, numbers)), tuple(range(4 * len(numbers))), 4, "", tier)


def removed(*numbers: int, tier: Tier = Tier.DEVICE) -> PagesRemoved:
    return PagesRemoved(tuple(map(digest, numbers)), tier)


def tell(book: KvEventLog, *events: PageEvent) -> None:
    book.publish(encode_batch(EventBatch(1.0, events)))


def followed(index: PrefixIndex, changes: KvChanges) -> int:
    """Bring an index up to date, and return the number of the change after it."""
    for event in KvChanges.decoded(*changes.encoded()).events:
        index.follow(event)
    return changes.following


def known(index: PrefixIndex, most: int = 100) -> set[int]:
    return {number for number in range(most) if index.match([digest(number)])}


@pytest.mark.parametrize("seed", range(20))
def test_those_who_ask_now_and_then_know_what_is_held(seed: int) -> None:
    """Whether they ask often, seldom, or began anew in between, and whatever is kept of the changes."""
    draw = random.Random(seed)
    book = KvEventLog(most_kept=draw.choice([0, 5, 40]))
    held: dict[Tier, set[int]] = {Tier.DEVICE: set(), Tier.HOST: set()}
    asking = [(PrefixIndex(1000), draw.random()) for _ in range(3)]
    firsts = [EVERYTHING] * 3
    for _ in range(200):
        tier, numbers = draw.choice(list(held)), draw.sample(range(100), draw.randint(1, 4))
        match draw.choices(["stored", "removed", "cleared"], [10, 8, 0.2])[0]:
            case "stored":
                held[tier] |= set(numbers)
                tell(book, stored(*numbers, tier=tier))
            case "removed":
                held[tier] -= set(numbers)
                tell(book, removed(*numbers, tier=tier))
            case _:
                held = {each: set() for each in held}
                tell(book, PagesCleared())
        for place, (index, often) in enumerate(asking):
            if draw.random() < often:
                firsts[place] = followed(index, book.changes(firsts[place]))
                assert known(index) == held[Tier.DEVICE] | held[Tier.HOST]
            elif draw.random() < 0.01:
                asking[place], firsts[place] = (PrefixIndex(1000), often), EVERYTHING


def test_what_is_told_holds_no_token_and_comes_in_pieces() -> None:
    """Tokens would be most of it; and all pages of a large cache at once would keep a request waiting."""
    book = KvEventLog()
    tell(book, stored(*range(3 * AT_ONCE)))
    changes = book.changes(EVERYTHING)
    assert [len(event.digests) for event in changes.events[1:] if isinstance(event, PagesStored)] == [AT_ONCE] * 3
    assert len(changes.encoded()[2]) < 3 * AT_ONCE * 20


def test_changes_that_do_not_follow_on_what_is_known_are_left_out() -> None:
    """Two questions may be open at once, and a replica's cache is forgotten when it loses a request."""
    policy = make_policy("prefix-aware", RouterOptions(400, 4))
    own, book = ReplicaRouter(Dispatcher(policy), OURS, 4), KvEventLog()
    own.admit([ReplicaCandidate("a", OURS, "1")])

    def told(changes: KvChanges) -> None:
        own._follow("a", changes)

    def known_of_a() -> set[int]:
        index = policy.prefixes("a")
        assert index is not None
        return known(index)

    tell(book, stored(1))
    told(book.changes(own.first_wanted("a")))
    tell(book, removed(1))
    before = book.changes(own.first_wanted("a"))
    tell(book, stored(1))
    told(book.changes(own.first_wanted("a")))
    told(before)
    assert known_of_a() == {1}
    policy.remove_replica("a")
    policy.add_replica("a")
    own._following.clear()
    told(book.changes(2))
    assert known_of_a() == set()
    told(book.changes(own.first_wanted("a")))
    assert known_of_a() == {1}
    own.admit([])
    own.admit([ReplicaCandidate("a", OURS, "1")])
    assert own.first_wanted("a") == EVERYTHING
    own._follow("gone", book.changes(EVERYTHING))


PROMPT = tuple(1 + place % (VOCAB - 1) for place in range(8 * PAGE_SIZE + 2))


def ask(prompt: tuple[int, ...] = PROMPT, salt: str = "", tokens: int = 2) -> Submit:
    return Submit(0, prompt, replace(resolved(tokens), seed=1), extra_key=salt)


async def look(world: FleetWorld) -> None:
    """Let the ingress ask the replicas once."""
    watching = asyncio.create_task(world.link.watch(1.0))
    for _ in range(9):
        await world.turn()
    watching.cancel()
    await asyncio.wait({watching})


async def goes_to(world: FleetWorld, request: Submit) -> str:
    submit(world.client, request)
    await world.settle()
    return world.sent_to[-1][1]


@pytest.mark.parametrize("router", TOLD)
async def test_a_prompt_goes_where_another_ingress_sent_it(router: str) -> None:
    """The ingress has never seen it, as after its own restart. Another namespace shares nothing."""
    for warm in "abc":
        world = FleetWorld(router=router)
        submit(world.replicas[warm].client, ask())
        for _ in range(9):
            await world.turn()
        await look(world)
        cold = world.chooser._dispatcher.policy.uncached_tokens
        assert await goes_to(world, ask()) == warm
        salted = ask(salt="tenant")
        assert set(cold(_Asked(salted), "abc").values()) == {len(PROMPT)}


class _Asked:
    """A request as a policy sees it."""

    session = None

    def __init__(self, request: Submit) -> None:
        self.extra_key, self._prompt = request.extra_key, request.prompt
        self.num_tokens = len(self._prompt)

    def digests(self, page_size: int) -> list[bytes]:
        return list(page_digests(self._prompt, page_size, self.extra_key))


@pytest.mark.parametrize("router", TOLD)
async def test_pages_that_a_replica_evicted_are_not_believed(router: str) -> None:
    """It was sent the prompt, and has given its pages up for others since."""
    world = FleetWorld(["a", "b"], router=router)
    warm = await goes_to(world, ask())
    policy = world.chooser._dispatcher.policy
    assert policy.uncached_tokens(_Asked(ask()), [warm])[warm] < PAGE_SIZE
    for number in range(2, 12):
        other = tuple(1 + (number * 31 + place) % (VOCAB - 1) for place in range(60))
        submit(world.replicas[warm].client, ask(other))
        for _ in range(12):
            await world.turn()
    await look(world)
    assert policy.uncached_tokens(_Asked(ask()), [warm])[warm] == len(PROMPT)
    submit(world.replicas[warm].client, ask())
    for _ in range(9):
        await world.turn()
    asking = asyncio.create_task(world.client.flush_cache())
    while not asking.done():
        await world.turn()
    await look(world)
    assert policy.uncached_tokens(_Asked(ask()), [warm])[warm] == len(PROMPT), "flushed"


async def test_the_pages_of_answers_are_known() -> None:
    world = FleetWorld(["a"])
    inbox = submit(world.client, ask(tokens=3 * PAGE_SIZE))
    await world.settle()
    answer = tuple(token for output in await inbox.get() for token in output.token_ids)
    await look(world)
    index = world.chooser._dispatcher.policy.prefixes("a")
    assert index is not None
    assert index.match(list(page_digests(PROMPT + answer, PAGE_SIZE))) >= len(PROMPT) // PAGE_SIZE + 2


def test_a_router_that_is_told_nothing_goes_by_what_it_has_sent() -> None:
    """The feed of a replica may be late or lost: requests go on."""
    own = ReplicaRouter(Dispatcher(make_policy("prefix-aware", RouterOptions(400, 4))), OURS, 4)
    own.admit([ReplicaCandidate("a", OURS, "1")])
    own.told({}, 0.0)
    assert own.first_wanted("a") == EVERYTHING
