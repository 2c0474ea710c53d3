"""Which replica serves a request."""

from __future__ import annotations

from collections import Counter

import pytest

from routed import Asked, text
from sluice.config import ConfigError
from sluice.kv.digests import page_digests
from sluice.routing.dispatch import Dispatcher, NoReplica, QueuedWork
from sluice.routing.policies import POLICIES, RouterOptions, make_policy
from sluice.routing.prefixes import PrefixIndex


def dispatcher(name: str, replicas: int = 2, cache_tokens: int = 10_000) -> Dispatcher:
    return Dispatcher(make_policy(name, RouterOptions(cache_tokens, page_size=16)), map(str, range(replicas)))


def test_round_robin_takes_each_in_turn() -> None:
    """An offset that is lost with each call sends everything to one replica."""
    router = dispatcher("round-robin", 3)
    assert [router.route(number, Asked(text(number, 5))) for number in range(7)] == list("0120120")


def test_least_loaded_counts_prompt_tokens_until_the_first_token() -> None:
    """Three short prompts are less work than a long one, and a request that decodes is no work for prefill."""
    router = dispatcher("least-loaded")
    assert router.route(0, Asked(text(0, 1000))) == "0"
    assert [router.route(number, Asked(text(number, 100))) for number in (1, 2, 3)] == ["1"] * 3
    router.first_token(0)
    router.first_token(0)
    assert router.loads["0"] == QueuedWork(0, 1)
    assert router.route(4, Asked(text(4, 100))) == "0"
    assert router.queued == [1, 2, 3, 4]
    router.ended(0)
    router.ended(4)
    assert router.loads["0"] == QueuedWork(0, 0)
    assert router.open == [1, 2, 3]


def test_power_of_two_spreads_equal_loads_and_avoids_the_busier() -> None:
    """Drawing one replica twice would choose at random."""
    router = dispatcher("power-of-two", 4)
    router.route(-1, Asked(text(99, 5000)))
    chosen = Counter(router.route(number, Asked(text(number, 10))) for number in range(300))
    busy = max(router.loads, key=lambda key: router.loads[key].queued_tokens)
    assert chosen[busy] < 3
    assert all(count > 60 for key, count in chosen.items() if key != busy)
    assert dispatcher("power-of-two", 1).route(0, Asked((1,))) == "0"


def test_prefix_aware_follows_the_prefix() -> None:
    """A conversation that changes its replica is computed from the start."""
    router = dispatcher("prefix-aware", 3)
    first = router.route(0, Asked(text(1, 320)))
    router.ended(0)
    other = router.route(1, Asked(text(2, 320)))
    router.ended(1)
    assert router.route(2, Asked(text(1, 320) + text(3, 40))) == first
    assert router.loads[first].queued_tokens == 40
    router.ended(2)
    assert other != first
    assert router.route(3, Asked(text(2, 340))) == other


def test_prefix_aware_spills_over_when_the_warm_replica_is_late() -> None:
    """A popular prefix would otherwise pile up on one replica. The second one is warm from then on."""
    router = dispatcher("prefix-aware")
    warm = router.route(0, Asked(text(1, 320)))
    router.ended(0)
    assert router.route(1, Asked(text(1, 320) + text(2, 300))) == warm
    assert router.route(2, Asked(text(1, 320) + text(3, 25))) == warm
    cold = router.route(3, Asked(text(1, 320) + text(4, 40)))
    assert (cold != warm, router.loads[cold].queued_tokens) == (True, 360)
    router.first_token(3)
    router.route(4, Asked(text(1, 320) + text(5, 40)))
    assert router.loads[cold].queued_tokens == 40


def test_namespaces_share_no_prefix() -> None:
    """Replicas do not share pages between cache salts."""
    router = dispatcher("prefix-aware")
    router.route(0, Asked(text(1, 320)))
    router.ended(0)
    router.route(1, Asked(text(1, 320), extra_key="salt"))
    assert sum(load.queued_tokens for load in router.loads.values()) == 320


def test_a_whole_cached_prompt_still_computes_its_last_token() -> None:
    """Else a replica full of repeated prompts looks idle."""
    router = dispatcher("prefix-aware", 1)
    for number in range(3):
        router.route(number, Asked(text(1, 32)))
    assert router.loads["0"].queued_tokens == 32 + 2


def test_the_index_forgets_ends_of_prompts_before_their_beginnings() -> None:
    """A beginning that leaves first makes all that is behind it useless."""
    index = PrefixIndex(6)
    old, new = (list(page_digests(text(seed, 4 * 16), 16)) for seed in (1, 2))
    index.add(old)
    index.add(new)
    assert (len(index), index.match(new), index.match(old)) == (6, 4, 2)
    index.add(list(page_digests(text(3, 100 * 16), 16)))
    assert (len(index), index.match(new)) == (6, 0)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"must be one of {', '.join(POLICIES)}, got 'random'"):
        dispatcher("random")


@pytest.mark.parametrize("name", POLICIES)
def test_replicas_come_and_go(name: str) -> None:
    """A request that is sent to a replica that has gone is lost; one that is never sent to a new one needs no fleet."""
    router = dispatcher(name, 2)
    for number in range(4):
        router.route(number, Asked(text(number, 100)))
    router.remove_replica("0")
    assert {router.route(number, Asked(text(number % 4, 120))) for number in range(4, 12)} == {"1"}
    router.add_replica("new")
    chosen = [router.route(number, Asked(text(number, 100))) for number in range(12, 40)]
    assert set(chosen) == {"1", "new"}
    for number in range(40):
        router.ended(number)
    assert router.loads == {"1": QueuedWork(), "new": QueuedWork()}, "requests of a replica that has gone end too"


def test_a_replica_that_comes_again_owes_nothing_of_its_former_life() -> None:
    """Ends of its old requests would be taken off the load of the new one, which would look idle for ever."""
    router = dispatcher("prefix-aware", 1)
    router.route(0, Asked(text(1, 320)))
    router.remove_replica("0")
    router.add_replica("0")
    assert router.loads == {"0": QueuedWork()}
    router.route(1, Asked(text(1, 320)))
    assert router.loads["0"].order == (320, 1), "its cache is empty"
    router.ended(0)
    assert router.loads["0"].order == (320, 1)


def test_a_request_goes_to_a_replica_that_may_serve_it() -> None:
    """A stream resumes only where the weights are the same."""
    router = dispatcher("prefix-aware", 3)
    for number in range(6):
        assert router.route(number, Asked(text(1, 320)), among={"1", "gone"}) == "1"
    with pytest.raises(NoReplica, match="among the 1 that may serve it"):
        router.route(6, Asked(text(1, 320)), among={"gone"})
    assert router.open == [0, 1, 2, 3, 4, 5]


def test_wrong_keys_are_refused() -> None:
    """Two replicas under one key would share a load."""
    router = dispatcher("round-robin", 1)
    with pytest.raises(ValueError, match="a replica '0' already"):
        router.add_replica("0")
    with pytest.raises(KeyError):
        router.remove_replica("1")
    router.remove_replica("0")
    with pytest.raises(NoReplica, match="no replica for request 7"):
        router.route(7, Asked(text(1, 5)))
