"""Which replica serves a request."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace

import pytest

from fleet_world import OURS, THEIRS
from sluice.fleet.calls import Call, Target, received
from sluice.fleet.choosing import Candidate, Chooser
from sluice.fleet.identity import Identity
from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import RouterOptions, make_policy
from sluice.testing import resolved
from sluice.types import Submit

A, B = Candidate("a", OURS, "1"), Candidate("b", OURS, "1")
FOREIGN = Candidate("foreign", THEIRS, "2")
PROMPT = tuple(range(1, 40))


def chooser() -> Chooser:
    return Chooser(Dispatcher(make_policy("prefix-aware", RouterOptions(256, 4))), OURS, 4, lambda: 0.0)


def call(own: Chooser, request_id: int = 1, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> Call:
    return Call(Submit(request_id, prompt, resolved(4), extra_key=salt), own, lambda: 0.0)


def test_requests_follow_their_prefix_while_replicas_come_and_go() -> None:
    own = chooser()
    first = own.choose(1, call(own), [A, B])
    own.ended(1)
    assert own.choose(2, call(own, 2), [A, B]) == first
    other = {"a": B, "b": A}[str(first)]
    assert own.choose(3, call(own, 3), [other]) == other.key
    assert own.replicas == [other.key]


def test_a_request_that_is_sent_again_counts_once() -> None:
    own = chooser()
    for _ in range(3):
        own.choose(1, call(own), [A, B])
    own.first_token(1)
    own.ended(1)
    own.ended(1)
    assert [load.num_requests for load in own._dispatcher.loads.values()] == [0, 0]


def test_a_replica_of_another_model_is_kept_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    own = chooser()
    with caplog.at_level(logging.WARNING):
        assert own.choose(1, call(own), [FOREIGN]) is None
        assert own.choose(1, call(own), [FOREIGN, A]) == "a"
    (line,) = caplog.messages
    assert "foreign is kept out: it has shadow with the fingerprint other weights" in line


def test_another_form_of_messages_keeps_a_replica_out() -> None:
    reason = replace(OURS, wire="new form").difference(OURS)
    assert reason is not None
    assert "another version of Sluice" in reason
    assert OURS.difference(Identity("renamed", OURS.fingerprint, OURS.wire)) is None


def test_a_question_goes_to_the_replica_or_version_that_it_names() -> None:
    own = chooser()
    assert Target(own).choose([FOREIGN, A, B]) == "a"
    assert Target(own, "b").choose([FOREIGN, A, B]) == "b"
    assert Target(own, "gone").choose([A, B]) is None
    assert Target(version="2").choose([A, FOREIGN]) == "foreign"


def test_what_crosses_is_the_request_alone() -> None:
    own = chooser()
    sent = received(pickle.loads(pickle.dumps(call(own, salt="tenant"))))
    assert sent.identity == OURS
    assert sent.request(0.0) == call(own, salt="tenant").request
    assert pickle.loads(pickle.dumps(Target(own, "a"))) == b""


def test_the_text_for_rays_router_begins_alike_where_tokens_do() -> None:
    own = chooser()
    one, other = call(own, prompt=(5, 0xD7FF, 0xD800, 150_000, 7)), call(own, prompt=(5, 0xD7FF, 0xD800, 150_000, 8))
    assert one.prompt[:-1] == other.prompt[:-1]
    assert one.prompt != other.prompt
    assert call(own, salt="one").prompt[0] != call(own, salt="other tenant"[::-1]).prompt[0]
    assert one.prompt.encode().decode() == one.prompt
