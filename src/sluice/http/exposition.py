"""Counts as Prometheus reads them: under vLLM's names where vLLM has the metric, under `sluice:` where it has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sluice.engine.histogram import Histogram, Tally
from sluice.engine.messages import Stats
from sluice.http.metrics import Metrics
from sluice.process.engine_state import RecoveryStats
from sluice.types import Bound, FinishReason, Tier, TierUse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ENGINE = "0"
"""vLLM numbers the engines of a server; here there is one."""
LABELS = ("model_name", "engine")


class _Families:
    """Makes metrics that carry the model's name."""

    def __init__(self, model: str) -> None:
        self._own = [model, ENGINE]

    def counter(self, name: str, help: str, value: float) -> Metric:
        return self.counters(name, help, (), {(): value})

    def counters(
        self, name: str, help: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        family = CounterMetricFamily(name, help, labels=[*LABELS, *labels])
        for given, value in values.items():
            family.add_metric([*self._own, *given], value)
        return family

    def gauge(self, name: str, help: str, value: float, **labels: object) -> Metric:
        family = GaugeMetricFamily(name, help, labels=[*LABELS, *labels])
        family.add_metric([*self._own, *map(str, labels.values())], value)
        return family

    def gauges(self, name: str, help: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> Metric:
        family = GaugeMetricFamily(name, help, labels=[*LABELS, *labels])
        for given, value in values.items():
            family.add_metric([*self._own, *given], value)
        return family

    def histogram(self, name: str, help: str, seen: Histogram | Tally | None) -> Metric:
        tally = seen.tally() if isinstance(seen, Histogram) else seen
        family = HistogramMetricFamily(name, help, labels=LABELS)
        if tally is not None:
            ends = [*map(floatToGoString, tally.bounds), "+Inf"]
            buckets = list(zip(ends, accumulate(tally.counts), strict=True))
            family.add_metric(self._own, buckets=buckets, sum_value=tally.total)
        return family


def of_requests(metrics: Metrics) -> Iterator[Metric]:
    """What the server saw."""
    make = _Families(metrics.model)
    counter, histogram = make.counter, make.histogram
    yield counter("vllm:prompt_tokens", "Prompt tokens of requests that were given a token.", metrics.prompt_tokens)
    yield counter("vllm:generation_tokens", "Tokens given to requests.", metrics.generation_tokens)
    yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", metrics.prompt_tokens)
    yield counter("vllm:prefix_cache_hits", "Prompt tokens found there.", metrics.cached_tokens)
    yield make.counters(
        "sluice:cached_tokens",
        "The same, by where they lay.",
        ("tier",),
        {(tier.value,): count for tier, count in metrics.cached_by_tier.items()},
    )
    yield counter("sluice:cached_requests", "Requests that found a beginning there.", metrics.cached_requests)
    yield make.counters(
        "vllm:request_success",
        "Requests that ended, by reason.",
        ("finished_reason",),
        {(reason.value,): metrics.finished[reason] for reason in FinishReason},
    )
    yield histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", metrics.prompt_lengths)
    yield histogram("vllm:request_generation_tokens", "Tokens given to a request.", metrics.output_lengths)
    yield histogram("vllm:request_params_max_tokens", "max_tokens of a request.", metrics.limits)
    yield histogram("vllm:time_to_first_token_seconds", "From a call to its first token.", metrics.to_first)
    yield histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", metrics.between)
    yield histogram("vllm:request_time_per_output_token_seconds", "The same, each request's mean.", metrics.per_token)
    yield histogram("vllm:e2e_request_latency_seconds", "From a call to its last token.", metrics.to_end)
    http = CounterMetricFamily("http_requests", "HTTP calls.", labels=["handler", "method", "status"])
    for (handler, method, status), count in sorted(metrics.http.items()):
        http.add_metric([handler or "none", method, str(status)], count)
    yield http


def of_engine(metrics: Metrics, stats: Stats) -> Iterator[Metric]:
    """What the engine said of itself."""
    make, now, totals = _Families(metrics.model), stats.occupancy, stats.totals
    counter, gauge, histogram = make.counter, make.gauge, make.histogram
    used = now.total_pages - now.free_pages - now.cached_pages
    yield gauge("vllm:num_requests_running", "Requests on the device.", now.running)
    yield gauge("vllm:num_requests_waiting", "Requests that wait.", now.waiting)
    yield gauge("vllm:kv_cache_usage_perc", "Pages in use; 1 is all of them.", used / now.total_pages)
    yield counter("vllm:num_preemptions", "Running requests sent back to wait.", now.preemptions)
    yield counter("sluice:retractions", "The same.", now.preemptions)
    yield gauge("sluice:partial_prefills", "Running requests whose prompt is half read.", now.partial)
    yield gauge("sluice:free_pages", "Pages that hold nothing.", now.free_pages)
    yield gauge("sluice:cached_pages", "Pages that hold a prefix nobody uses now.", now.cached_pages)
    yield gauge("sluice:total_pages", "Pages of the KV pool.", now.total_pages)
    yield gauge("sluice:loading_requests", "Requests whose prefix comes from another tier.", now.loading)
    yield from of_tiers(make, now.tiers)
    yield counter("sluice:steps", "Steps.", totals.steps)
    yield counter("sluice:failed_steps", "Steps that failed as a whole.", totals.failed_steps)
    yield counter("sluice:prefill_chunks", "Pieces of prompts.", totals.prefill_chunks)
    yield counter("sluice:prefill_tokens", "Tokens of these.", totals.prefill_tokens)
    yield counter("sluice:decode_tokens", "Rows that decoded, a token each.", totals.decode_tokens)
    bound = dict(zip(Bound, totals.bound_by, strict=False))
    yield make.counters(
        "sluice:bound_by",
        "Steps, by the limit that kept them from holding more.",
        ("limit",),
        {(limit.value,): bound.get(limit, 0) for limit in Bound},
    )
    yield histogram("vllm:iteration_tokens_total", "Tokens of a step.", totals.tokens)
    yield histogram("sluice:step_seconds", "In the runner, of a step.", totals.step_seconds)
    yield histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", totals.queue_seconds)
    yield histogram("vllm:request_prefill_time_seconds", "From there to the first token.", totals.prefill_seconds)
    yield histogram("vllm:request_decode_time_seconds", "From there to the last.", totals.decode_seconds)
    yield histogram("vllm:request_inference_time_seconds", "The two together.", totals.inference_seconds)


def of_tiers(make: _Families, uses: Sequence[TierUse]) -> Iterator[Metric]:
    """What lies behind the device. Tiers that are not there have no pages."""
    found = {use.tier: use for use in uses}
    tiers = [found.get(tier, TierUse(tier, 0, 0)) for tier in (Tier.HOST, Tier.DISK)]

    def of_each(value: Callable[[TierUse], int]) -> dict[tuple[str, ...], float]:
        return {(use.tier.value,): value(use) for use in tiers}

    label = ("tier",)
    yield make.gauges("sluice:tier_pages", "Pages of the tier.", label, of_each(lambda use: use.total))
    yield make.gauges("sluice:tier_used_pages", "Of these, those that hold KV.", label, of_each(lambda use: use.used))
    yield make.counters("sluice:stored_pages", "Pages copied to the tier.", label, of_each(lambda use: use.stored))
    yield make.counters(
        "sluice:failed_stores", "Pages that could not be.", label, of_each(lambda use: use.failed_stores)
    )
    yield make.counters("sluice:loaded_pages", "Pages brought back.", label, of_each(lambda use: use.loaded))
    yield make.counters(
        "sluice:failed_loads", "Pages that could not be read well.", label, of_each(lambda use: use.failed_loads)
    )


def of_recovery(metrics: Metrics, stats: RecoveryStats) -> Iterator[Metric]:
    """What became of engines that died."""
    make = _Families(metrics.model)
    counter = make.counter
    yield counter("sluice:engine_restarts", "Engines started in the place of one that died.", stats.restarts)
    yield counter("sluice:replayed_requests", "Requests sent to another engine.", stats.replayed_requests)
    yield counter("sluice:replayed_tokens", "Their tokens that were computed again.", stats.replayed_tokens)
    yield counter("sluice:poison_requests", "Requests ended since engines died of them.", stats.ended_requests)
    yield make.histogram("sluice:resume_seconds", "From a death to the first token after it.", stats.to_resume)


def engine_up(metrics: Metrics, is_up: bool) -> Metric:
    return _Families(metrics.model).gauge("sluice:engine_up", "1 while there is an engine to serve with.", is_up)


def cache_config(metrics: Metrics, page_size: object, total_pages: int) -> Metric:
    """vLLM's `cache_config_info`: routers read the sizes of the pool off its labels."""
    return _Families(metrics.model).gauge(
        "vllm:cache_config_info", "Sizes of the KV pool.", 1, block_size=page_size, num_gpu_blocks=total_pages
    )


class _Once(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(families: Iterable[Metric]) -> bytes:
    """The page, in Prometheus' text format. Not in OpenMetrics, whatever a scraper prefers: there the library writes
    `vllm_` for `vllm:`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(list(families)))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
