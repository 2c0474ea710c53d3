"""/metrics: what Prometheus, and dashboards made for vLLM, find there."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.applications import Starlette

from serving import MODEL, run, serving
from sluice.engine.messages import Message, QueryStats, Stats
from sluice.engine.meter import Totals
from sluice.http.base.backend import Backend
from sluice.http.base.calls import CALL, Call
from sluice.http.base.routes import Routes
from sluice.http.observe.engine_metrics import Page, add_metrics
from sluice.http.observe.http_metrics import Metrics
from sluice.process.client import EngineClient
from sluice.testing import Faults, resolved
from sluice.types import FinishReason, Occupancy, Output, Submit, Tier, TierUse

DOCS = Path(__file__).parents[2] / "docs"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OF_PROCESS = re.compile("process_.*")


async def scrape(http: httpx.AsyncClient) -> Samples:
    """Every sample, by name and by the labels that not every one has."""
    page = await http.get("/metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=")
    return samples_of(page.text)


def samples_of(text: str) -> Samples:
    found: Samples = {}
    for family in parse(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if not OF_PROCESS.fullmatch(sample.name) and not sample.name.startswith("http_"):
                assert labels.pop("model_name") == MODEL
                assert labels.pop("engine") == "0"
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_tokens_and_ends_are_counted() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a" * 40, max_tokens=5, ignore_eos=True)
            await server.events("/v1/completions", prompt="a" * 40, max_tokens=3, n=2)
            samples = await scrape(server.http)
            assert value(samples, "vllm:prompt_tokens_total") == 120
            assert value(samples, "vllm:generation_tokens_total") == 5 + 2 * 3
            assert value(samples, "vllm:prefix_cache_queries_total") == 120
            assert value(samples, "vllm:prefix_cache_hits_total") == 2 * 36
            assert value(samples, "sluice:cached_requests_total") == 2
            ends = {
                dict(labels)["finished_reason"]: count
                for (name, labels), count in samples.items()
                if name == "vllm:request_success_total"
            }
            assert ends == dict.fromkeys(FinishReason, 0) | {"length": 3}
            for name in ("time_to_first_token", "e2e_request_latency", "request_time_per_output_token"):
                assert value(samples, f"vllm:{name}_seconds_count") == 3
            assert value(samples, "vllm:inter_token_latency_seconds_count") == 4 + 2 + 2
            assert value(samples, "vllm:request_generation_tokens_sum") == 11
            assert value(samples, "vllm:request_prompt_tokens_bucket", le="20.0") == 0
            assert value(samples, "vllm:request_prompt_tokens_bucket", le="50.0") == 3
            assert value(samples, "vllm:request_params_max_tokens_sum") == 11

    run(test)


def test_what_the_engine_reports() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="b" * 50, max_tokens=4, ignore_eos=True)
            samples = await scrape(server.http)
            steps = value(samples, "sluice:steps_total")
            assert steps == len(server.engine.runner.plans) == 5
            assert value(samples, "sluice:prefill_chunks_total") == 2
            assert value(samples, "sluice:prefill_tokens_total") == 50
            assert value(samples, "sluice:decode_tokens_total") == 3
            assert value(samples, "sluice:failed_steps_total") == 0
            assert value(samples, "sluice:bound_by_total", limit="chunked_prefill_size") == 1
            assert value(samples, "sluice:bound_by_total", limit="nothing") == steps - 1
            assert value(samples, "vllm:iteration_tokens_total_count") == steps
            assert value(samples, "vllm:iteration_tokens_total_sum") == 53
            assert value(samples, "sluice:step_seconds_count") == steps
            for name in ("queue", "prefill", "decode", "inference"):
                assert value(samples, f"vllm:request_{name}_time_seconds_count") == 1
            assert value(samples, "sluice:engine_up") == 1
            assert value(samples, "vllm:num_requests_running") == value(samples, "vllm:num_requests_waiting") == 0
            assert value(samples, "vllm:kv_cache_usage_perc") == 0
            assert value(samples, "sluice:free_pages") + value(samples, "sluice:cached_pages") == 64
            assert value(samples, "sluice:total_pages") == 64
            assert value(samples, "vllm:num_preemptions_total") == value(samples, "sluice:retractions_total") == 0
            assert value(samples, "sluice:partial_prefills") == 0
            assert value(samples, "vllm:cache_config_info", block_size="4", num_gpu_blocks="64") == 1

    run(test)


def test_a_busy_engine() -> None:
    async def test() -> None:
        async with serving(max_running_requests=2, max_batch_tokens=40) as server:
            server.hold()
            calls = [asyncio.create_task(server.complete(prompt="ab", max_tokens=100)) for _ in range(5)]
            await server.arrived(5)
            samples = await scrape(server.http)
            assert value(samples, "vllm:num_requests_running") == 2
            assert value(samples, "vllm:num_requests_waiting") == 3
            free = value(samples, "sluice:free_pages") + value(samples, "sluice:cached_pages")
            assert value(samples, "vllm:kv_cache_usage_perc") == 1 - free / 64 > 0
            server.let_go()
            await asyncio.gather(*calls)
            assert value(await scrape(server.http), "vllm:kv_cache_usage_perc") == 0, "what is only cached is not used"

    run(test)


def test_failures_have_their_reason() -> None:
    async def test() -> None:
        async with serving(faults=Faults(launch_raises=frozenset({0}))) as server:
            assert (await server.post("/v1/completions", prompt="a")).status_code == 500
            inbox = server.client.submit([Submit(server.client.next_id(), tuple(b"abc"), resolved(150))])
            await inbox.get()
            inbox.close()
            samples = await scrape(server.http)
            assert value(samples, "sluice:failed_steps_total") == 1
            assert value(samples, "vllm:request_success_total", finished_reason="error") == 1
            assert value(samples, "vllm:request_success_total", finished_reason="abort") == 1
            assert value(samples, "vllm:e2e_request_latency_seconds_count") == 2
            assert value(samples, "vllm:time_to_first_token_seconds_count") == 1

    run(test)


def test_requests_lost_with_their_engine_are_counted() -> None:
    """And forgotten: metrics that time requests which never end would keep all of them."""

    async def test() -> None:
        async with serving() as server:
            client = EngineClient(lambda message: None, server.metrics)
            client.submit([Submit(client.next_id(), (1,), resolved(1))])
            assert server.metrics.num_open == 1
            client.fail("killed")
            assert server.metrics.num_open == 0
            assert server.metrics.finished == {FinishReason.ERROR: 1}

    run(test)


def test_a_long_step_does_not_hold_a_scrape_up() -> None:
    """Prometheus gives up after a while, and then knows nothing of a server that is only busy. It reads how the engine
    last stood instead."""

    async def test() -> None:
        async with serving() as server:
            asked: list[Message] = []
            client = EngineClient(asked.append)
            backend = Backend(server.backend.engine)
            backend.open(replace(server.backend.service(), client=client))
            routes = Routes()
            add_metrics(routes, backend, server.metrics, wait_seconds=0.001)
            app = Starlette(routes=routes.starlette_routes())
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
                samples = await scrape(http)
                assert value(samples, "sluice:engine_up") == 1
                assert ("sluice:steps_total", ()) not in samples, "nothing is known yet"
                (query,) = asked
                assert isinstance(query, QueryStats)
                client.deliver(Stats(query.query_id, Occupancy(3, 1, 5, 2, 10), None, Totals(steps=7)))
                samples = await scrape(http)
                assert value(samples, "sluice:steps_total") == 7
                assert value(samples, "vllm:num_requests_running") == 3
                assert value(samples, "vllm:kv_cache_usage_perc") == 0.3

    run(test)


def test_without_an_engine() -> None:
    """While the model loads, and after its end: what the server itself counted is there, and an alarm can be set."""

    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a", max_tokens=2)
            server.backend.close("killed")
            samples = await scrape(server.http)
            assert value(samples, "sluice:engine_up") == 0
            assert value(samples, "vllm:request_success_total", finished_reason="length") == 1
            assert ("sluice:steps_total", ()) not in samples

    run(test)


def test_calls_are_counted_by_handler() -> None:
    """Not by path: a client that asks for a new path each time would fill the memory of server and Prometheus."""

    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a", max_tokens=1)
            await server.post("/v1/completions", prompt=5)
            for name in ("a", "b", "c/d"):
                assert (await server.http.get(f"/v1/models/{name}")).status_code == 404
                assert (await server.http.get(f"/nothing/{name}")).status_code == 404
            samples = await scrape(server.http)
            calls = {labels: count for (name, labels), count in samples.items() if name == "http_requests_total"}
            assert sorted(
                (dict(labels)["handler"], dict(labels)["code"], count) for labels, count in calls.items()
            ) == [
                ("/v1/completions", "200", 1),
                ("/v1/completions", "400", 1),
                ("/v1/models/{name:path}", "404", 3),
                ("none", "404", 3),
            ]

    run(test)


def test_names_are_the_same_for_every_scraper() -> None:
    """In OpenMetrics the colon of vLLM's names becomes an underscore, and every dashboard is empty."""

    async def test() -> None:
        async with serving() as server:
            accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
            page = await server.http.get("/metrics", headers={"accept": accept})
            assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "vllm:num_requests_running" in page.text

    run(test)


def test_times_are_those_of_the_clock() -> None:
    now = [100.0]
    metrics = Metrics(lambda: now[0])
    metrics.submitted(Submit(1, (5, 6, 7), resolved(9)))
    metrics.submitted(Submit(2, (5,), resolved(9)))
    for at, outputs in (
        (101.0, [Output(1, 0, (8,), 2, num_disk_tokens=1)]),
        (101.5, [Output(1, 1, (8, 9), 2), Output(2, 0, (8,), 0)]),
        (104.0, [Output(1, 3, (8,), 2, FinishReason.STOP), Output(2, 1, (), 0, FinishReason.ABORT)]),
        (105.0, [Output(1, 0, (8,), 2)]),
    ):
        now[0] = at
        metrics.received(outputs)
    metrics.ended(2, FinishReason.ABORT)
    assert metrics.to_first.tally().total == 1.0 + 1.5
    assert metrics.between.tally().total == 0.5 + 0.0 + 2.5
    assert metrics.per_token.tally().total == 3.0 / 3
    assert metrics.to_end.tally().total == 8.0
    assert (metrics.generation_tokens, metrics.prompt_tokens, metrics.cached_tokens) == (5, 4, 2)
    assert metrics.cached_by_tier == {Tier.DEVICE: 1, Tier.HOST: 0, Tier.DISK: 1}
    assert metrics.finished == {FinishReason.STOP: 1, FinishReason.ABORT: 1}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b((?:vllm|sluice):\w+|http_requests\w*|process_\w+)", text))


def test_the_dashboard_shows_metrics_that_exist() -> None:
    """A panel without data is believed to be a quiet server."""

    async def test() -> None:
        async with serving() as server:
            await server.complete(prompt="a", max_tokens=2)
            existing = {name for name, _ in await scrape(server.http)}
        board = json.loads((DOCS / "grafana.json").read_text())
        asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
        wanted = set().union(*map(names_in, asked))
        assert wanted <= existing, wanted - existing
        assert {"vllm:time_to_first_token_seconds_bucket", "sluice:bound_by_total"} <= wanted
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])

    run(test)


def test_every_metric_is_described() -> None:
    """The page in docs/ lists what is served, and nothing else."""

    async def test() -> None:
        async with serving() as server:
            page = (await server.http.get("/metrics")).text
        served = {f"{family.name}_total" if family.type == "counter" else family.name for family in parse(page)}
        listed = names_in((DOCS / "metrics.md").read_text())
        ours = {name for name in served if not name.startswith("process_")}
        assert {name for name in listed if not name.startswith("process_")} == ours

    run(test)


def test_tiers_behind_the_device_are_shown() -> None:
    """Which tier is too small, and whether its disk can be trusted. One that is not there has no pages."""
    page = Page(MODEL)
    disk = TierUse(Tier.DISK, 10, 7, stored=8, failed_stores=1, loaded=5, failed_loads=2, retired=1)
    occupancy = Occupancy(1, 2, 3, 4, 9, loading=3, tiers=(disk,))
    page.add_engine(Stats(1, occupancy, None))
    samples = samples_of(page.render().decode())
    of_disk = {name: value for (name, labels), value in samples.items() if ("tier", "disk") in labels}
    assert of_disk == {
        "sluice:tier_pages": 10,
        "sluice:tier_used_pages": 7,
        "sluice:tier_retired_pages": 1,
        "sluice:stored_pages_total": 8,
        "sluice:failed_stores_total": 1,
        "sluice:loaded_pages_total": 5,
        "sluice:failed_loads_total": 2,
    }
    assert value(samples, "sluice:tier_pages", tier="host") == 0
    assert value(samples, "sluice:loading_requests") == 3


SWAPPED = frozenset({"vllm:num_requests_swapped", "vllm:cpu_cache_usage_perc"})
"""What only vLLM's former engine had: there is no swapped state."""
HISTOGRAMS_OF_VLLM = {
    "E2E Request Latency": "e2e_request_latency_seconds",
    "Inter Token Latency": "inter_token_latency_seconds",
    "Time To First Token Latency": "time_to_first_token_seconds",
    "Request Prompt Length": "request_prompt_tokens",
    "Request Generation Length": "request_generation_tokens",
    "Queue Time": "request_queue_time_seconds",
    "Requests Prefill Time": "request_prefill_time_seconds",
    "Requests Decode Time": "request_decode_time_seconds",
    "Max Generation Token in Sequence Group": "request_max_num_generation_tokens",
    "TPS (Tokens Per Second) Over Time": "iteration_tokens_total",
}
"""Panel of the dashboards in vLLM's repository -> the histogram whose buckets, sum or count it shows."""
VALUES_OF_VLLM = {
    "Token Throughput": ("prompt_tokens_total", {}),
    "Token Throughput, output": ("generation_tokens_total", {}),
    "Scheduler State": ("num_requests_running", {}),
    "Scheduler State, waiting": ("num_requests_waiting", {}),
    "Scheduler queue": ("num_requests_waiting_by_reason", {"reason": "capacity"}),
    "Scheduler queue, deferred": ("num_requests_waiting_by_reason", {"reason": "deferred"}),
    "Cache Utilization": ("kv_cache_usage_perc", {}),
    "Finish Reason": ("request_success_total", {"finished_reason": "length"}),
    "Prefix cache hit rate": ("prefix_cache_hits_total", {}),
    "Prefix cache hit rate, of": ("prefix_cache_queries_total", {}),
    "Cached prompt tokens": ("prompt_tokens_cached_total", {}),
    "Preemptions / s": ("num_preemptions_total", {}),
}
"""Panel -> the metric that it shows, and the labels that it selects or sums by beside model_name."""


def test_vllms_dashboards_have_data() -> None:
    """Empty panels are taken for an idle server."""

    async def test() -> None:
        async with serving() as server:
            for _ in range(2):
                await server.complete(prompt="a" * 40, max_tokens=4, ignore_eos=True)
            samples = await scrape(server.http)
        for panel, name in HISTOGRAMS_OF_VLLM.items():
            assert value(samples, f"vllm:{name}_count") > 0, panel
            assert value(samples, f"vllm:{name}_bucket", le="+Inf") > 0, panel
            assert (f"vllm:{name}_sum", ()) in samples, panel
        for panel, (name, labels) in VALUES_OF_VLLM.items():
            assert (f"vllm:{name}", tuple(labels.items())) in samples, panel
        for name in ("prompt_tokens_total", "generation_tokens_total", "prompt_tokens_cached_total"):
            assert value(samples, f"vllm:{name}") > 0, name
        assert not SWAPPED & {name for name, _ in samples}

    run(test)


def test_the_longest_sample_of_a_prompt() -> None:
    """Each prompt counts once, when all its samples have ended, with the tokens of the longest."""
    metrics = Metrics(lambda: 0.0)
    several = replace(resolved(9), n=2)
    for number, index in ((1, 0), (2, 1), (3, 0), (4, 1)):
        metrics.submitted(Submit(number, (5,), several, index))
    metrics.received([Output(1, 0, (8, 8, 8), 0, FinishReason.STOP), Output(3, 0, (8,), 0, FinishReason.STOP)])
    assert sum(metrics.longest_outputs.tally().counts) == 0
    metrics.received([Output(2, 0, (8,), 0, FinishReason.STOP)])
    assert metrics.longest_outputs.tally().total == 3
    metrics.ended(4, FinishReason.ABORT)
    assert metrics.longest_outputs.tally().total == 3 + 1


def test_the_longest_sample_of_prompts_that_are_submitted_in_parts() -> None:
    """A prompt of many samples is submitted in parts. Those after another call's prompt would be counted as that one's,
    and its own end would never come."""
    metrics = Metrics(lambda: 0.0)
    several = replace(resolved(9), n=2)
    first, second = (Call(name, "POST", "/v1/completions", {}, 0.0) for name in ("a", "b"))
    for number, index, call in ((1, 0, first), (2, 0, second), (3, 1, first), (4, 1, second)):
        token = CALL.set(call)
        metrics.submitted(Submit(number, (5,), several, index))
        CALL.reset(token)
    metrics.received([Output(number, 0, (8,) * number, 0, FinishReason.STOP) for number in (1, 3)])
    assert metrics.longest_outputs.tally().total == 3
    metrics.received([Output(number, 0, (8,) * number, 0, FinishReason.STOP) for number in (2, 4)])
    assert metrics.longest_outputs.tally().total == 3 + 4


def test_the_share_of_failed_calls() -> None:
    """vLLM's panel of failed calls selects status="5xx"; with the code there, it would show none for ever."""

    async def test() -> None:
        async with serving(faults=Faults(launch_raises=frozenset({0}))) as server:
            await server.post("/v1/completions", prompt="a")
            calls = {labels: n for (name, labels), n in (await scrape(server.http)).items() if "http_requests" in name}
        assert {tuple(dict(labels)[name] for name in ("status", "code")) for labels in calls} == {("5xx", "500")}

    run(test)
