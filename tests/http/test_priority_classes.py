"""Priority classes through HTTP: how a request names one, and what is seen of them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from serving import run, serving
from sluice.http.observe.engine_metrics import Page
from sluice.http.observe.http_metrics import Metrics
from sluice.testing import resolved
from sluice.types import Output, PriorityClass, Submit

OPTIONS: dict[str, Any] = {"schedule_policy": "deadline", "max_running_requests": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2},
    "/generate": {"text": "ab", "sampling_params": {"max_new_tokens": 2}},
    "/v1/embeddings": {"input": "ab"},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_class_is_named_as_priority_or_service_tier(path: str) -> None:
    """On every route; what names none is standard, so that metrics and the trace need not guess."""

    async def test() -> None:
        async with serving(**OPTIONS) as server:
            for more in (
                {},
                {"priority": "batch"},
                {"priority": 0, "service_tier": "auto"},
                {"service_tier": "flex"},
                {"service_tier": "priority", "priority": "interactive"},
            ):
                answer = await server.post(path, **BODIES[path], **more)
                assert answer.status_code == 200, answer.text
            sent = [each for each in server.sent if isinstance(each, Submit)]
            assert [each.priority_class for each in sent] == ["standard", "batch", "standard", "batch", "interactive"]
            assert all(before.arrived < after.arrived for before, after in pairwise(sent))

    run(test)


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"priority": "high"}, "priority", "must be an integer, or one of interactive, standard, batch, got 'high'"),
        ({"priority": 3}, "priority", "(--schedule-policy priority); this one takes interactive, standard, batch"),
        (
            {"priority": "batch", "service_tier": "priority"},
            "service_tier",
            "priority 'batch' and service_tier 'priority', which is 'interactive' here, contradict each other",
        ),
    ],
)
def test_refused(more: dict[str, Any], param: str, said: str) -> None:
    async def test() -> None:
        async with serving(**OPTIONS) as server:
            answer = await server.post("/v1/completions", **BODIES["/v1/completions"], **more)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param)
            assert said in error["message"]

    run(test)


def test_a_service_tier_has_no_effect_without_classes() -> None:
    """A client that sends it by default is served as ever."""

    async def test() -> None:
        async with serving() as server:
            answer = await server.post("/v1/completions", prompt="ab", max_tokens=2, service_tier="flex")
            assert answer.status_code == 200
            assert [each.priority_class for each in server.sent if isinstance(each, Submit)] == [""]

    run(test)


def test_classes_order_a_full_engine() -> None:
    async def test() -> None:
        async with serving(**OPTIONS) as server:
            names = ("interactive", "batch", "standard", "interactive")
            body: dict[str, Any] = {"prompt": "ab", "max_tokens": 100}
            await asyncio.gather(*(server.complete(**body, priority=name) for name in names))
            opened = [new.request_id for plan in server.engine.runner.plans for new in plan.new_slots]
            assert opened == [1, 4, 3, 2]

    run(test)


def test_server_info_has_the_targets() -> None:
    async def test() -> None:
        async with serving(itl_target="100ms", priority_classes="interactive:ttft=500ms") as server:
            info = (await server.http.get("/server_info")).json()
            assert info["priority_classes"] == {
                "interactive": {"ttft_target": 0.5, "itl_target": 0.1},
                "standard": {"ttft_target": 10.0, "itl_target": 0.1},
                "batch": {"ttft_target": 600.0, "itl_target": 0.4},
            }
        async with serving() as server:
            assert (await server.http.get("/server_info")).json()["priority_classes"] == {}

    run(test)


def test_first_tokens_within_the_target_are_counted() -> None:
    """By class: an operator sees which one is late. A request that ends without a token is not on time."""
    now = 0.0
    metrics = Metrics(lambda: now)
    metrics.classes = (PriorityClass("interactive", 1_000_000), PriorityClass("batch", 60_000_000))
    for number, (name, seconds) in enumerate([("interactive", 0.9), ("interactive", 1.1), ("batch", 1.1)]):
        now = 0.0
        metrics.submitted(Submit(number, (1, 2), resolved(4), priority_class=name))
        now = seconds
        metrics.received([Output(number, 0, (7,), 0)])
        metrics.received([Output(number, 1, (7,), 0)])
    page = Page("model")
    page.add_requests(metrics)
    (family,) = (each for each in parse(page.render().decode()) if each.name == "sluice:first_tokens")
    counts = {(each.labels["priority"], each.labels["target"]): each.value for each in family.samples}
    assert counts == {
        ("interactive", "met"): 1,
        ("interactive", "missed"): 1,
        ("batch", "met"): 1,
        ("batch", "missed"): 0,
    }
