"""`GET /metrics`, and what the server counts for it: requests, tokens and their times as clients see them.

`Metrics` watches what the engine's client sends and receives, so it sees the requests of every route. Names are vLLM's
where vLLM has the metric, else they begin with `sluice:`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.requests import Request
from starlette.responses import Response

from sluice.engine.messages import Stats
from sluice.engine.meter import LATE_BY, REQUEST_SECONDS, Histogram, ItlTotals, PaceTotals, Tally
from sluice.http.backend import Backend
from sluice.http.calls import CALL, Call
from sluice.http.loop_watchdog import PauseLog
from sluice.http.routes import Routes
from sluice.process.client import EngineClient, EngineGone, Observer
from sluice.process.engine_state import RecoveryStats
from sluice.types import Bound, FinishReason, Output, PriorityClass, Regime, Submit, Tier, TierUse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")
ENGINE = "0"
"""vLLM numbers the engines of a server; here there is one."""
WAIT_SECONDS = 0.5
"""How long a scrape waits for the engine to end its step. Prometheus gives up after 10 s, and then has no numbers."""
TO_FIRST_SECONDS: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
BETWEEN_SECONDS: tuple[float, ...] = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
TOKENS: tuple[float, ...] = tuple(mantissa * 10**power for power in range(7) for mantissa in (1, 2, 5))


@dataclass(slots=True)
class _Samples:
    """The samples of one prompt."""

    left: int
    """Those that have not ended."""
    most_tokens: int = 0
    """Output tokens of the longest that has."""


@dataclass(slots=True)
class _Open:
    """A request whose end has not been seen."""

    arrived: float
    prompt_tokens: int
    call: Call | None
    samples: _Samples
    priority_class: str
    output_tokens: int = 0
    first: float = 0.0
    last: float = 0.0


class Metrics(Observer):
    """Counts for as long as the server lives, whichever engine serves. It is a `calls.Listener` as well.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: dict[int, _Open] = {}
        self._samples: dict[int, _Samples] = {}
        """Those of the latest prompt of each call, by its `id`: a call submits its requests in their order, but perhaps
        in parts, between which others submit theirs."""
        self.model = ""
        """The model's name in the API, once it is known."""
        self.classes: tuple[PriorityClass, ...] = ()
        """Of the engine, once they are known."""
        self.first_tokens: Counter[tuple[str, bool]] = Counter()
        """First tokens and embeddings by class, and whether they came within its TTFT target."""
        self.prompt_tokens = 0
        self.cached_by_tier = dict.fromkeys(Tier, 0)
        """Prompt tokens found in the cache, by the tier where they lay."""
        self.generation_tokens = 0
        self.cached_requests = 0
        """Requests with a beginning of their prompt in the cache."""
        self.finished: Counter[FinishReason] = Counter()
        self.http: Counter[tuple[str, str, int]] = Counter()
        """Calls by handler, method and status, as in `Call`."""
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)
        self.longest_outputs = Histogram(TOKENS)
        """Of the longest of each prompt's samples."""
        self.max_tokens = Histogram(TOKENS)
        self.to_first = Histogram(TO_FIRST_SECONDS)
        self.between = Histogram(BETWEEN_SECONDS)
        """Between the tokens of a request; of tokens that came together the later ones count as 0 s."""
        self.per_token = Histogram(BETWEEN_SECONDS)
        """The mean of each request."""
        self.to_end = Histogram(REQUEST_SECONDS)
        self.pauses = PauseLog()
        """Pauses of the event loop."""

    @property
    def num_open(self) -> int:
        """Requests that are being timed."""
        return len(self._open)

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached_by_tier.values())

    def submitted(self, request: Submit) -> None:
        call, prompt_tokens = CALL.get(), len(request.prompt)
        # A call's time begins before its prompt is tokenized.
        arrived = self._clock() if call is None else call.began
        if request.sample_index == 0:
            self._samples[id(call)] = _Samples(request.sampling.n)
        self._open[request.request_id] = _Open(
            arrived, prompt_tokens, call, self._samples[id(call)], request.priority_class
        )
        assert request.sampling.max_tokens is not None, f"not resolved: {request.sampling}"
        if not request.embeds:
            self.max_tokens.add(request.sampling.max_tokens)
        if call is not None:
            call.model, call.sampling = self.model, None if request.embeds else request.sampling
            call.engine_ids.append(request.request_id)
            if request.sample_index == 0:
                call.num_prompts += 1
                call.prompt_tokens += prompt_tokens

    def received(self, outputs: Sequence[Output]) -> None:
        now = self._clock()
        for output in outputs:
            request = self._open.get(output.request_id)
            if request is None:
                continue
            if output.token_ids:
                self._count_tokens(request, output, now)
            elif output.embedding:
                self._count_prompt(request, output, now)
            if output.finish_reason is not None:
                self._end(output.request_id, output.finish_reason, now)

    def ended(self, request_id: int, reason: FinishReason) -> None:
        if request_id in self._open:
            self._end(request_id, reason, self._clock())

    def answered(self, call: Call) -> None:
        self._samples.pop(id(call), None)
        self.http[call.handler, call.method, call.status] += 1

    def _count_tokens(self, request: _Open, output: Output, now: float) -> None:
        if request.output_tokens == 0:
            request.first = now
            self.to_first.add(now - request.arrived)
            self._count_prompt(request, output, now)
        else:
            self.between.add(now - request.last)
        count = len(output.token_ids)
        for _ in range(count - 1):
            self.between.add(0.0)
        request.last = now
        request.output_tokens += count
        self.generation_tokens += count

    def _count_prompt(self, request: _Open, output: Output, now: float) -> None:
        for each in self.classes:
            if each.name == request.priority_class:
                self.first_tokens[each.name, (now - request.arrived) * 1e6 <= each.ttft_target] += 1
        self.prompt_tokens += request.prompt_tokens
        cached = output.cached
        for tier, tokens in zip(Tier, (cached.device, cached.host, cached.disk), strict=True):
            self.cached_by_tier[tier] += tokens
        self.cached_requests += output.num_cached_tokens > 0
        if request.call is not None:
            request.call.cached_tokens += output.num_cached_tokens

    def _end(self, request_id: int, reason: FinishReason, now: float) -> None:
        request = self._open.pop(request_id)
        self.finished[reason] += 1
        self.to_end.add(now - request.arrived)
        self.prompt_lengths.add(request.prompt_tokens)
        self.output_lengths.add(request.output_tokens)
        samples = request.samples
        samples.left -= 1
        samples.most_tokens = max(samples.most_tokens, request.output_tokens)
        if samples.left == 0:
            self.longest_outputs.add(samples.most_tokens)
        if request.output_tokens > 1:
            self.per_token.add((request.last - request.first) / (request.output_tokens - 1))
        if request.call is not None:
            request.call.output_tokens += request.output_tokens
            request.call.finish_reasons.append(reason)


Values = float | Mapping[str, float]
"""One value, or a value for each value of the metric's own label."""


class Page(Collector):
    """Collects the metrics of one scrape, each with the labels `model_name` and `engine`."""

    def __init__(self, model: str) -> None:
        self._labels = (model, ENGINE)
        self._families: list[Metric] = []

    def counter(self, name: str, help: str, values: Values, label: str = "") -> None:
        self._add(CounterMetricFamily(name, help, labels=(*LABELS, label) if label else LABELS), values)

    def gauge(self, name: str, help: str, values: Values, label: str = "") -> None:
        self._add(GaugeMetricFamily(name, help, labels=(*LABELS, label) if label else LABELS), values)

    def _add(self, family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> None:
        by_label = values.items() if isinstance(values, Mapping) else [(None, values)]
        for label, value in by_label:
            family.add_metric(self._labels if label is None else (*self._labels, label), value)
        self._families.append(family)

    def histogram(self, name: str, help: str, seen: Histogram | Tally | None) -> None:
        tally = seen.tally() if isinstance(seen, Histogram) else seen
        family = HistogramMetricFamily(name, help, labels=LABELS)
        if tally is not None:
            ends = [*map(floatToGoString, tally.bounds), "+Inf"]
            buckets = list(zip(ends, accumulate(tally.counts), strict=True))
            family.add_metric(self._labels, buckets=buckets, sum_value=tally.total)
        self._families.append(family)

    def collect(self) -> Iterable[Metric]:
        return self._families

    def add_requests(self, metrics: Metrics) -> None:
        """Add what the server has counted."""
        prompt_tokens, by_tier = metrics.prompt_tokens, {tier.value: n for tier, n in metrics.cached_by_tier.items()}
        ends = {reason.value: metrics.finished[reason] for reason in FinishReason}
        self.counter("vllm:prompt_tokens", "Prompt tokens of requests given a token, or embedded.", prompt_tokens)
        self.counter("vllm:generation_tokens", "Tokens given to requests.", metrics.generation_tokens)
        self.counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", prompt_tokens)
        self.counter("vllm:prefix_cache_hits", "Prompt tokens found there.", metrics.cached_tokens)
        self.counter("vllm:prompt_tokens_cached", "The same.", metrics.cached_tokens)
        self.counter("sluice:cached_tokens", "The same, by the tier where they lay.", by_tier, "tier")
        self.counter("sluice:cached_requests", "Requests that found a beginning there.", metrics.cached_requests)
        self.counter("vllm:request_success", "Requests that ended, by reason.", ends, "finished_reason")
        self.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", metrics.prompt_lengths)
        self.histogram("vllm:request_generation_tokens", "Tokens given to a request.", metrics.output_lengths)
        longest = "Tokens of the longest sample of a prompt."
        self.histogram("vllm:request_max_num_generation_tokens", longest, metrics.longest_outputs)
        self.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", metrics.max_tokens)
        self.histogram("vllm:time_to_first_token_seconds", "From a call to its first token.", metrics.to_first)
        self.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", metrics.between)
        self.histogram(
            "vllm:request_time_per_output_token_seconds", "The same, each request's mean.", metrics.per_token
        )
        self.histogram("vllm:e2e_request_latency_seconds", "From a call to its last token.", metrics.to_end)
        self.add_classes(metrics)
        pauses = metrics.pauses
        self.counter("sluice:event_loop_pauses", "Times that the event loop was blocked.", pauses.count)
        self.counter("sluice:event_loop_pause_seconds", "Their sum.", pauses.seconds)
        calls = CounterMetricFamily("http_requests", "HTTP calls.", labels=("handler", "method", "status", "code"))
        for (handler, method, status), count in sorted(metrics.http.items()):
            calls.add_metric((handler or "none", method, f"{status // 100}xx", str(status)), count)
        self._families.append(calls)

    def add_classes(self, metrics: Metrics) -> None:
        """Add how classes keep their TTFT targets. Without classes there is nothing to add."""
        help = "First tokens, and embeddings, by class and whether they came within its TTFT target."
        family = CounterMetricFamily("sluice:first_tokens", help, labels=(*LABELS, "priority", "target"))
        for each in metrics.classes:
            for is_met in (True, False):
                labels = (*self._labels, each.name, "met" if is_met else "missed")
                family.add_metric(labels, metrics.first_tokens[each.name, is_met])
        self._families.append(family)

    def add_engine(self, stats: Stats) -> None:
        """Add what the engine has counted, and how full it is."""
        now, totals = stats.occupancy, stats.totals
        used = now.total_pages - now.free_pages - now.cached_pages
        counts = dict(zip(Bound, totals.bound_by, strict=False))
        bound_by = {limit.value: counts.get(limit, 0) for limit in Bound}
        self.gauge("vllm:num_requests_running", "Requests on the device.", now.running)
        self.gauge("vllm:num_requests_waiting", "Requests that wait.", now.waiting)
        waits = {"capacity": now.waiting, "deferred": now.loading}
        self.gauge("vllm:num_requests_waiting_by_reason", "Those, and those that load a prefix.", waits, "reason")
        self.gauge("vllm:kv_cache_usage_perc", "Pages in use; 1 is all of them.", used / now.total_pages)
        self.counter("vllm:num_preemptions", "Preemptions of running requests.", now.preemptions)
        self.counter("sluice:retractions", "The same.", now.preemptions)
        self.gauge("sluice:partial_prefills", "Running requests whose prompt is computed in part.", now.partial)
        self.gauge("sluice:free_pages", "Pages that hold nothing.", now.free_pages)
        self.gauge("sluice:cached_pages", "Pages that hold a prefix no request uses now.", now.cached_pages)
        self.gauge("sluice:total_pages", "Pages of the KV pool.", now.total_pages)
        self.gauge("sluice:loading_requests", "Requests whose prefix comes from another tier.", now.loading)
        self.gauge("sluice:compiling_requests", "Requests whose grammar is compiled.", now.compiling)
        self.counter("sluice:grammars", "Grammars of requests, by event.", totals.grammars.events(), "event")
        self.counter("sluice:grammar_compile_seconds", "Spent compiling them.", totals.grammars.seconds)
        self.add_tiers(now.tiers)
        self.counter("sluice:steps", "Steps.", totals.steps)
        self.counter("sluice:failed_steps", "Steps that failed as a whole.", totals.failed_steps)
        self.counter("sluice:prefill_chunks", "Chunks of prompts.", totals.prefill_chunks)
        self.counter("sluice:prefill_tokens", "Tokens of these chunks.", totals.prefill_tokens)
        self.counter("sluice:decode_tokens", "Rows that decoded, a token each.", totals.decode_tokens)
        self.counter("sluice:bound_by", "Steps, by the limit that kept them from holding more.", bound_by, "limit")
        self.add_pace(totals.itl)
        self.histogram("vllm:iteration_tokens_total", "Tokens of a step.", totals.tokens)
        self.histogram("sluice:step_seconds", "In the runner, of a step.", totals.step_seconds)
        self.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", totals.queue_seconds)
        self.histogram("vllm:request_prefill_time_seconds", "From there to the first token.", totals.prefill_seconds)
        self.histogram("vllm:request_decode_time_seconds", "From there to the last.", totals.decode_seconds)
        self.histogram("vllm:request_inference_time_seconds", "The two together.", totals.inference_seconds)

    def add_pace(self, itl: ItlTotals | None) -> None:
        """Add how steps keep the ITL target. Without one there are zeros."""
        itl = itl or ItlTotals(0.0, 0.0, {}, (0,) * len(LATE_BY), 0)
        late = {f"{share:.0%}": count for share, count in zip(LATE_BY, itl.late, strict=True)}
        self.gauge("sluice:itl_target_seconds", "What the latest step could take; 0: no target.", itl.target)
        self.gauge("sluice:itl_margin", "Its predicted time at the quantile over its predicted time.", itl.margin)
        self.counter("sluice:late_steps", "Steps with streams above the target by more than this.", late, "over")
        self.counter(
            "sluice:infeasible_steps", "Steps whose decodes with the smallest chunk exceed the target.", itl.infeasible
        )
        for name, help, field in (
            ("sluice:timed_steps", "Steps whose time was predicted.", "steps"),
            ("sluice:predicted_step_seconds", "Their predicted times.", "predicted"),
            ("sluice:measured_step_seconds", "Their times.", "measured"),
            ("sluice:step_error_seconds", "Differences of the two, without signs.", "error"),
        ):
            values = {str(regime): itl.regimes.get(regime, PaceTotals())._asdict()[field] for regime in Regime}
            self.counter(name, help, values, "regime")

    def add_tiers(self, uses: Sequence[TierUse]) -> None:
        """Add the tiers other than the device. A tier that is not there has no pages."""
        found = {use.tier: use for use in uses}
        tiers = [found.get(tier, TierUse(tier, 0, 0)) for tier in (Tier.HOST, Tier.DISK)]
        for add, name, help, field in (
            (self.gauge, "sluice:tier_pages", "Pages of the tier.", "total"),
            (self.gauge, "sluice:tier_used_pages", "Pages of the tier that hold KV.", "used"),
            (self.counter, "sluice:stored_pages", "Pages copied to the tier.", "stored"),
            (self.counter, "sluice:failed_stores", "Pages that could not be copied to it.", "failed_stores"),
            (self.counter, "sluice:loaded_pages", "Pages loaded from the tier.", "loaded"),
            (self.counter, "sluice:failed_loads", "Pages that could not be loaded, or not intact.", "failed_loads"),
        ):
            add(name, help, {use.tier.value: use._asdict()[field] for use in tiers}, "tier")

    def add_disabled_tiers(self, disabled: Collection[Tier]) -> None:
        """Add which tiers the engine serves without."""
        values = {tier.value: tier in disabled for tier in (Tier.HOST, Tier.DISK)}
        self.gauge("sluice:tier_disabled", "1 while the engine, restarted, serves without the tier.", values, "tier")

    def add_recovery(self, stats: RecoveryStats) -> None:
        """Add the recoveries from engines that died."""
        self.counter("sluice:engine_restarts", "Engines started in the place of one that died.", stats.restarts)
        self.counter("sluice:replayed_requests", "Requests sent to another engine.", stats.replayed_requests)
        self.counter("sluice:replayed_tokens", "Their tokens that were computed again.", stats.replayed_tokens)
        self.counter("sluice:poison_requests", "Requests ended because engines died of them.", stats.ended_requests)
        self.histogram("sluice:resume_seconds", "From a death to the first token after it.", stats.to_resume)

    def add_cache_config(self, page_size: object, total_pages: int) -> None:
        """Add vLLM's `cache_config_info`: routers read the sizes of the pool off its labels."""
        labels = (*LABELS, "block_size", "num_gpu_blocks")
        info = GaugeMetricFamily("vllm:cache_config_info", "Sizes of the KV pool.", labels=labels)
        info.add_metric((*self._labels, str(page_size), str(total_pages)), 1)
        self._families.append(info)

    def render(self) -> bytes:
        """Return the page in Prometheus' text format, with the metrics of this process.

        It is never OpenMetrics, which a scraper may prefer: there the library writes `vllm_` for `vllm:`.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)


def add_metrics(routes: Routes, backend: Backend, metrics: Metrics, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Add the route.

    Args:
        wait_seconds: after which the engine's numbers are those of its last answer.
    """

    @routes.add("GET", "/metrics", summary="Metrics (Prometheus)", media_type=CONTENT_TYPE)
    async def show_metrics(request: Request) -> Response:
        service = backend.service() if backend.has_service else None
        stats = None if service is None else await _stats(service.client, wait_seconds)
        page = Page(metrics.model)
        is_up = service is not None and backend.engine.is_serving
        page.gauge("sluice:engine_up", "1 while there is an engine to serve with.", is_up)
        sleeps = backend.engine.is_asleep
        page.gauge("sluice:engine_sleeping", "1 while there is none because none is needed.", sleeps)
        page.add_disabled_tiers(backend.engine.disabled_tiers)
        loading = backend.engine.loading
        page.gauge("sluice:engine_loading_seconds", "For how long one loads.", loading.seconds if loading else 0.0)
        page.add_recovery(backend.engine.stats)
        page.add_requests(metrics)
        if stats is not None and service is not None:
            page.add_engine(stats)
            (page_size,) = (setting.value for setting in service.settings if setting.name == "page_size")
            page.add_cache_config(page_size, stats.occupancy.total_pages)
        return Response(page.render(), media_type=CONTENT_TYPE)


async def _stats(client: EngineClient, wait_seconds: float) -> Stats | None:
    """Return the engine's counts, or those of its last answer if it is late; None if there is no engine."""
    try:
        return await asyncio.wait_for(client.stats(), wait_seconds)
    except TimeoutError:
        return client.latest
    except EngineGone:
        return None
