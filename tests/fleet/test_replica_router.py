"""Which replica serves a request."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from fleet_world import OURS, THEIRS
from sluice.fleet import calls
from sluice.fleet.calls import ReplicaCall, ReplicaTarget, received
from sluice.fleet.identity import Identity
from sluice.fleet.replica_router import AVOID_SECONDS, ReplicaAttempt, ReplicaCandidate, ReplicaRouter
from sluice.kv.digests import page_digests
from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import RouterOptions, make_policy
from sluice.routing.split import PrefillSplit, SplitLimits
from sluice.testing import resolved
from sluice.types import Submit

A, B = ReplicaCandidate("a", OURS, "1"), ReplicaCandidate("b", OURS, "1")
FOREIGN = ReplicaCandidate("foreign", THEIRS, "2")
PROMPT = tuple(range(1, 40))


def chooser(now: Callable[[], float] = lambda: 0.0) -> ReplicaRouter:
    return ReplicaRouter(Dispatcher(make_policy("prefix-aware", RouterOptions(256, 4))), OURS, 4, now)


def choose(sent: ReplicaCall, *candidates: ReplicaCandidate) -> str | None:
    return sent.chooser.choose(sent.attempt, sent, candidates)


def call(own: ReplicaRouter, request_id: int = 1, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> ReplicaCall:
    return ReplicaCall(Submit(request_id, prompt, resolved(4), extra_key=salt), own, lambda: 0.0)


def test_requests_follow_their_prefix_while_replicas_come_and_go() -> None:
    own = chooser()
    before = call(own)
    first = choose(before, A, B)
    own.ended(before.attempt)
    assert choose(call(own, 2), A, B) == first
    other = {"a": B, "b": A}[str(first)]
    assert choose(call(own, 3), other) == other.key
    assert own.replicas == [other.key]


def test_a_request_that_is_sent_again_counts_once() -> None:
    own = chooser()
    again = call(own)
    for _ in range(3):
        choose(again, A, B)
    own.first_token(again.attempt)
    own.ended(again.attempt)
    own.ended(again.attempt)
    assert [load.num_requests for load in own._dispatcher.loads.values()] == [0, 0]


def test_what_the_router_chooses_after_the_end_counts_for_nothing() -> None:
    """Its thread may be at it when the call is cancelled, and when the next attempt is on its way."""
    own = chooser()
    over, following = call(own), call(own)
    own.ended(over.attempt)
    assert choose(over, A, B) is None
    choose(following, A, B)
    assert choose(over, A, B) is None
    own.ended(over.attempt)
    assert sorted(load.num_requests for load in own._dispatcher.loads.values()) == [0, 1]
    own.ended(following.attempt)
    assert [load.order for load in own._dispatcher.loads.values()] == [(0, 0), (0, 0)]


def test_a_replica_that_lost_a_request_is_avoided_while_there_are_others() -> None:
    now = [0.0]
    own = chooser(lambda: now[0])
    lost = call(own)
    first = A if choose(lost, A, B) == "a" else B
    other = B if first is A else A
    own.lost(lost.attempt)
    for moment in (0.0, AVOID_SECONDS - 0.1):
        now[0] = moment
        assert choose(call(own, 2), A, B) == other.key
        assert choose(call(own, 3), first) == first.key
    now[0] = AVOID_SECONDS
    assert own.admit_for(ReplicaAttempt(4), [A, B]) == ["a", "b"]
    assert own.admit_for(ReplicaAttempt(4, frozenset({"a"})), [A, B, FOREIGN]) == ["b"]
    assert own.admit_for(ReplicaAttempt(4, frozenset({"a", "b"})), [A, B]) == ["a", "b"]


def test_what_a_lost_replica_had_cached_is_not_believed() -> None:
    now = [0.0]
    own = chooser(lambda: now[0])
    lost = call(own)
    key = choose(lost, A, B)
    assert key is not None
    policy = own._dispatcher.policy
    assert policy.uncached_tokens(lost, [key])[key] < len(PROMPT)
    own.lost(lost.attempt)
    assert policy.uncached_tokens(lost, [key])[key] == len(PROMPT)


def test_a_request_is_counted_where_it_was_taken_not_where_it_was_chosen() -> None:
    """Routers choose again when a replica refuses, and Ray's own router does not ask the chooser."""
    own = chooser()
    sent = call(own)
    for _ in range(3):
        choose(sent, A, B)
    assert own.counts().sent == {}
    own.sent(sent.attempt, "b")
    assert own.counts().sent == {"b": 1}


def test_a_replica_of_another_model_is_kept_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    own = chooser()
    with caplog.at_level(logging.WARNING):
        assert choose(call(own), FOREIGN) is None
        assert choose(call(own), FOREIGN, A) == "a"
    (line,) = caplog.messages
    assert "foreign is kept out: it has shadow with the fingerprint other weights" in line


def test_another_form_of_messages_keeps_a_replica_out() -> None:
    reason = replace(OURS, wire="new form").difference(OURS)
    assert reason is not None
    assert "another version of Sluice" in reason
    assert OURS.difference(Identity("renamed", OURS.fingerprint, OURS.wire)) is None


def test_a_question_goes_to_the_replica_or_version_that_it_names() -> None:
    own = chooser()
    assert ReplicaTarget(own).choose([FOREIGN, A, B]) == "a"
    assert ReplicaTarget(own, "b").choose([FOREIGN, A, B]) == "b"
    assert ReplicaTarget(own, "gone").choose([A, B]) is None
    assert ReplicaTarget(version="2").choose([A, FOREIGN]) == "foreign"


def test_what_crosses_is_the_request_alone() -> None:
    own = chooser()
    sent = received(pickle.loads(pickle.dumps(call(own, salt="tenant"))))
    assert sent.identity == OURS
    assert sent.request(0.0) == call(own, salt="tenant").request
    assert pickle.loads(pickle.dumps(ReplicaTarget(own, "a"))) == b""


def test_the_text_for_rays_router_begins_alike_where_tokens_do() -> None:
    own = chooser()
    one, other = call(own, prompt=(5, 0xD7FF, 0xD800, 150_000, 7)), call(own, prompt=(5, 0xD7FF, 0xD800, 150_000, 8))
    assert one.prompt[:-1] == other.prompt[:-1]
    assert one.prompt != other.prompt
    assert call(own, salt="one").prompt[0] != call(own, salt="other tenant"[::-1]).prompt[0]
    assert one.prompt.encode().decode() == one.prompt


def test_the_pages_of_a_prompt_are_hashed_once_for_all_that_is_asked_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All streams of the ingress wait while a prompt of 200,000 tokens is hashed again for every replica."""
    hashed: list[int] = []

    def counting(tokens: Sequence[int], page_size: int, extra_key: str = "") -> Iterator[bytes]:
        hashed.append(len(tokens))
        return page_digests(tokens, page_size, extra_key)

    monkeypatch.setattr(calls, "page_digests", counting)
    decode, prefill = chooser(), chooser()
    for own in (decode, prefill):
        own.admit([A, B])
    asked = call(decode)
    with prefill.locked() as first, decode.locked() as second:
        assert PrefillSplit(first, second, SplitLimits(len(PROMPT))).is_apart(asked)
    assert choose(asked, A, B) is not None
    assert hashed == [len(PROMPT)]
