"""The policy `expected-ttft`: where the first token is expected first."""

from __future__ import annotations

from collections import Counter

import pytest

from routed import Asked, text
from sluice.kv.digests import page_digests
from sluice.routing.dispatch import Dispatcher
from sluice.routing.expected import BYTES_PER_SESSION, ExpectedTtft
from sluice.routing.occupancy import ObservedOccupancy, PrefillSpeed
from sluice.routing.prefixes import BYTES_PER_PAGE

PAGE = 16


def dispatcher(replicas: int = 2, cache_tokens: int = 10_000) -> Dispatcher:
    return Dispatcher(ExpectedTtft(cache_tokens, PAGE), map(str, range(replicas)))


def idle(speed: float | None = 0.001, queued: int = 0, free: int = 100_000, weight: float = 1.0) -> ObservedOccupancy:
    return ObservedOccupancy(queued, 0, 0, free, speed, weight)


def served(router: Dispatcher, number: int, request: Asked, now: float = 0.0) -> str:
    """Send a request that is over at once."""
    key = router.route(number, request, now=now)
    router.ended(number)
    return key


def test_a_session_stays_where_its_pages_are() -> None:
    """Each turn that goes elsewhere is computed from the start there, and keeps others waiting."""
    router = dispatcher(4)
    prompt, homes = text(1, 400), set[str]()
    for turn in range(20):
        homes.add(served(router, turn, Asked(prompt, session="talk")))
        served(router, 100 + turn, Asked(text(50 + turn, 300)))
        prompt += text(200 + turn, 60)
    assert len(homes) == 1


def test_a_session_stays_although_another_replica_is_a_little_sooner() -> None:
    """The computing that its pages save is paid by those that come after it. Without a session the replica that is
    sooner has it."""
    for session, queued, stays in (("talk", 400, True), ("talk", 500, False), (None, 400, False)):
        router = dispatcher()
        home = served(router, 0, Asked(text(1, 320), session=session))
        router.update(home, idle(queued=queued), 1.0)
        router.update({"0": "1", "1": "0"}[home], idle(), 1.0)
        assert (router.route(1, Asked(text(1, 320) + text(2, 30), session=session), now=1.0) == home) == stays


def test_a_warm_replica_that_is_late_is_left() -> None:
    """A popular prefix, or a long queue, would otherwise pile up on one replica. The session is at home there then."""
    router = dispatcher()
    home = served(router, 0, Asked(text(1, 320), session="talk"))
    router.update(home, idle(queued=2000), 1.0)
    away = router.route(1, Asked(text(1, 320), session="talk"), now=1.0)
    assert away != home
    router.update(home, idle(), 2.0)
    router.update(away, idle(), 2.0)
    assert served(router, 2, Asked(text(1, 340), session="talk"), now=2.0) == away


def test_a_session_finds_a_new_home_when_its_replica_has_gone() -> None:
    """A replica that takes the key of one that has gone has none of its pages."""
    router = dispatcher(3)
    home = served(router, 0, Asked(text(1, 320), session="talk"))
    router.remove_replica(home)
    chosen = served(router, 1, Asked(text(1, 320), session="talk"))
    assert chosen != home
    router.add_replica(home)
    assert served(router, 2, Asked(text(1, 340), session="talk")) == chosen


def test_namespaces_share_neither_prefixes_nor_sessions() -> None:
    """Replicas do not share pages between cache salts, and two tenants may give sessions the same name."""
    router = dispatcher()
    home = served(router, 0, Asked(text(1, 320), session="talk"))
    router.route(1, Asked(text(1, 320), "salt", "talk"))
    assert sum(load.queued_tokens for load in router.loads.values()) == 320
    router.ended(1)
    router.update(home, idle(queued=100), 1.0)
    router.update({"0": "1", "1": "0"}[home], idle(), 1.0)
    assert router.route(2, Asked(text(3, 320), "other", "talk"), now=1.0) != home
    assert router.route(3, Asked(text(1, 320), session="talk"), now=1.0) == home


def test_an_unknown_prompt_goes_to_the_better_of_two() -> None:
    """Several routers that all take the one that published least would send everything there."""
    router = dispatcher(4)
    for key in "0123":
        router.update(key, idle(queued=100_000 if key == "2" else 0), 0.0)
    chosen = Counter(served(router, number, Asked(text(number, 40))) for number in range(300))
    assert chosen["2"] < 3
    assert all(chosen[key] > 60 for key in "013")


def test_no_herd_forms_between_two_reports() -> None:
    """What was sent since a replica published counts, or the one that was idle then gets all until it says more."""
    router = dispatcher()
    router.update("0", idle(queued=500), 1.0)
    router.update("1", idle(queued=0), 1.0)
    chosen = [router.route(number, Asked(text(number, 100)), now=1.0) for number in range(25)]
    assert chosen[:5] == ["1"] * 5
    assert 9 <= chosen[5:].count("0") <= 11
    assert router.loads["1"].backlog(1.0, 0.001) == pytest.approx(100 * chosen.count("1"))
    router.update("1", idle(queued=700), 0.9)
    assert router.loads["1"].backlog(1.0, 0.001) == pytest.approx(100 * chosen.count("1")), "older than what is known"
    router.update("1", idle(queued=700), 1.5)
    assert router.loads["1"].backlog(1.5, 0.001) == 700, "all that was sent is in it"
    for number in range(25):
        router.ended(number)
    assert router.loads["1"].backlog(1.5, 0.001) == 700
    assert router.loads["1"].backlog(2.0, 0.001) == pytest.approx(200), "computed since, by its speed"
    assert router.loads["1"].backlog(9.0, 0.001) == 0


def test_a_slow_replica_gets_fewer_prompts() -> None:
    """Tokens in a queue say little where one replica computes them four times as fast."""
    router = dispatcher()
    router.update("0", idle(speed=0.001), 0.0)
    router.update("1", idle(speed=0.004), 0.0)
    chosen = Counter(router.route(number, Asked(text(number, 100))) for number in range(100))
    assert 75 <= chosen["0"] <= 85


def test_a_replica_of_unknown_speed_counts_as_the_mean() -> None:
    """One that has just come would look as if it computed a token a second."""
    router = dispatcher(3)
    router.update("0", idle(speed=0.001), 0.0)
    router.update("1", idle(speed=None), 0.0)
    chosen = Counter(router.route(number, Asked(text(number, 100))) for number in range(90))
    assert all(25 <= chosen[key] <= 35 for key in "012")


def test_a_replica_that_has_computed_a_few_words_counts_as_the_others() -> None:
    """A step of one token takes ten times as long for each token as one of a hundred. The replica with the first long
    prompt got all others, too."""
    router = dispatcher(3)
    router.update("0", idle(speed=0.002, weight=4 * 128.0**2), 0.0)
    router.update("1", idle(speed=0.017, weight=1.0), 0.0)
    router.update("2", idle(speed=0.017, weight=2.0), 0.0)
    chosen = Counter(router.route(number, Asked(text(number, 100))) for number in range(90))
    assert all(25 <= chosen[key] <= 35 for key in "012")


def test_a_replica_without_room_comes_last() -> None:
    """A prompt that waits for memory waits for the ends of answers, however short the queue is."""
    router = dispatcher()
    home = served(router, 0, Asked(text(1, 320), session="talk"))
    other = {"0": "1", "1": "0"}[home]
    router.update(home, idle(free=20), 0.0)
    router.update(other, idle(queued=5000), 0.0)
    assert served(router, 1, Asked(text(1, 320) + text(2, 40), session="talk")) == other
    router.update(other, idle(free=0), 1.0)
    assert served(router, 2, Asked(text(9, 40)), now=1.0) in (home, other), "if none has, one is taken all the same"


def test_speeds_that_are_about_equal_are_equal() -> None:
    """The fastest of idle replicas would get all requests, and decode slowly with them."""
    router = dispatcher()
    router.update("0", idle(speed=0.00100), 0.0)
    router.update("1", idle(speed=0.00102), 0.0)
    for number in range(10):
        router.route(number, Asked(text(number, 100)))
        router.first_token(number)
    assert [load.num_requests for load in router.loads.values()] == [5, 5]


def test_what_replicas_tell_of_their_pages_counts() -> None:
    """Pages of answers are known from events alone, and evicted ones are not there, whatever was sent."""
    router = dispatcher()
    prompt, answer = text(1, 160), text(2, 160)
    home = served(router, 0, Asked(prompt))
    other = {"0": "1", "1": "0"}[home]
    index = router.policy.prefixes(other)
    assert index is not None
    both = list(page_digests(prompt + answer, PAGE))
    index.stored(both, "device")
    assert router.route(1, Asked(prompt + answer + text(3, 10))) == other
    assert router.loads[other].queued_tokens == 10
    router.ended(1)
    index.stored(both, "host")
    index.removed(both, "device")
    assert served(router, 2, Asked(prompt + answer)) == other, "they lie on the host"
    index.removed(both, "host")
    assert served(router, 3, Asked(prompt + answer)) == home
    index.stored(both, "device")
    index.cleared()
    assert len(index) == 0


def test_memory_is_bounded_and_said() -> None:
    """A router runs for months, past sessions and prompts without end, and replicas may tell more than they hold."""
    policy = ExpectedTtft(100 * PAGE, PAGE, most_sessions=50)
    router = Dispatcher(policy, "01")
    for number in range(300):
        served(router, number, Asked(text(number, 5 * PAGE), session=f"{number}"))
        policy.prefixes("0").stored(list(page_digests(text(1000 + number, 5 * PAGE), PAGE)))
    assert [len(policy.prefixes(key)) for key in "01"] == [100, 100]
    assert policy.num_sessions == 50
    assert policy.most_bytes == 200 * BYTES_PER_PAGE + 50 * BYTES_PER_SESSION


def test_large_steps_say_what_a_token_takes() -> None:
    """A step of few tokens takes about as long as one of none: by it, an idle replica looks slower than a busy one."""
    speed = PrefillSpeed()
    assert speed.seen(0, 0.0) is None
    steps = [(128, 0.03 + 128 * 0.003)] + 20 * [(4, 0.03 + 4 * 0.003)]
    squares = products = 0.0
    for tokens, seconds in steps:
        squares, products = squares + tokens**2, products + tokens * seconds
        found = speed.seen(round(squares), products)
    assert found == pytest.approx(0.0033, rel=0.1)
    assert speed.weight > 0.5 * 128**2
    assert found < speed.seen(16_384, 128 * 0.9) < 0.9 / 128, "a new engine counts from zero"
