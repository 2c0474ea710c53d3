"""`GET /metrics`: what the server and its engine have counted, in Prometheus' text format.

Names are vLLM's where vLLM has the metric, else they begin with `sluice:`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from sluice.engine.meter import LATE_BY, DraftTotals, Histogram, ItlTotals, PaceTotals, Tally
from sluice.engine.prompt_meter import PromptProgress
from sluice.http.base.backend import Backend
from sluice.http.base.routes import Routes
from sluice.http.observe.http_metrics import Metrics
from sluice.process.adapters import AdapterBook
from sluice.process.client import EngineClient, EngineGone
from sluice.process.engine_state import KvEventCounts, RecoveryStats
from sluice.types import AdapterUse, Bound, FinishReason, Regime, Tier, TierUse
from sluice.types.footprint import Footprint

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")
ENGINE = "0"
"""vLLM numbers the engines of a server; here there is one."""
WAIT_SECONDS = 0.5
"""How long a scrape waits for the engine to end its step. Prometheus gives up after 10 s, and then has no numbers."""

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
        help = "Tokens that a row with drafts brought, each request's mean."
        self.histogram("sluice:request_acceptance_length", help, metrics.acceptance_length)
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
        waits = {"capacity": now.waiting, "deferred": now.loading + now.held}
        self.gauge("vllm:num_requests_waiting_by_reason", "Those, and those that load a prefix.", waits, "reason")
        self.gauge("vllm:kv_cache_usage_perc", "Pages in use; 1 is all of them.", used / now.total_pages)
        self.counter("vllm:num_preemptions", "Preemptions of running requests.", now.preemptions)
        self.counter("sluice:retractions", "The same.", now.preemptions)
        self.gauge("sluice:partial_prefills", "Running requests whose prompt is computed in part.", now.partial)
        self.add_prompts(stats.prompts)
        self.gauge("sluice:free_pages", "Pages that hold nothing.", now.free_pages)
        self.gauge("sluice:cached_pages", "Pages that hold a prefix no request uses now.", now.cached_pages)
        self.gauge("sluice:total_pages", "Pages of the KV pool.", now.total_pages)
        self.gauge("sluice:state_records", "Records of recurrent states on the device.", now.records)
        self.gauge("sluice:used_state_records", "Those of cached prefixes, or being made.", now.used_records)
        self.gauge("sluice:window_pages", "Pages of layers with a window.", now.window_pages)
        self.gauge("sluice:used_window_pages", "Those that running requests hold.", now.used_window_pages)
        self.gauge("sluice:loading_requests", "Requests whose prefix comes from another tier.", now.loading)
        self.gauge("sluice:compiling_requests", "Requests whose grammar is compiled.", now.compiling)
        self.gauge("sluice:held_requests", "Requests that wait until their adapter is loaded.", now.held)
        self.counter("sluice:grammars", "Grammars of requests, by event.", totals.grammars.events(), "event")
        self.counter("sluice:grammar_compile_seconds", "Spent compiling them.", totals.grammars.seconds)
        self.add_tiers(now.tiers)
        self.counter("sluice:ring_loaded_bytes", "Loaded for contexts longer than the device.", totals.ring.bytes)
        self.counter("sluice:ring_load_seconds", "Spent loading them.", totals.ring.seconds)
        self.counter("sluice:ring_wait_seconds", "In which such a context waited for them.", totals.ring.waited)
        self.gauge("sluice:bounds_bytes", "What a sparse policy keeps of pages.", totals.ring.bounds_bytes)
        self.counter("sluice:steps", "Steps.", totals.steps)
        self.counter("sluice:failed_steps", "Steps that failed as a whole.", totals.failed_steps)
        self.counter("sluice:prefill_chunks", "Chunks of prompts.", totals.prefill_chunks)
        self.counter("sluice:prefill_tokens", "Tokens of these chunks.", totals.prefill_tokens)
        self.counter("sluice:decode_tokens", "Rows that decoded, a token each.", totals.decode_tokens)
        self.counter("sluice:denoised_blocks", "Blocks filled in by a model of block diffusion.", totals.blocks)
        self.counter("sluice:denoising_passes", "Passes that these took.", totals.passes)
        self.counter("sluice:bound_by", "Steps, by the limit that kept them from holding more.", bound_by, "limit")
        self.add_drafts(totals.drafts)
        self.add_pace(totals.itl)
        self.histogram("vllm:iteration_tokens_total", "Tokens of a step.", totals.tokens)
        self.histogram("sluice:step_seconds", "In the runner, of a step.", totals.step_seconds)
        self.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", totals.queue_seconds)
        self.histogram("vllm:request_prefill_time_seconds", "From there to the first token.", totals.prefill_seconds)
        self.histogram("vllm:request_decode_time_seconds", "From there to the last.", totals.decode_seconds)
        self.histogram("vllm:request_inference_time_seconds", "The two together.", totals.inference_seconds)

    def add_states(self, memory: Footprint) -> None:
        """Add what recurrent states take; zeros for a model that has none."""
        taken = {"slots": memory.state_bytes, "records": memory.record_bytes}
        self.gauge("sluice:state_bytes", "Memory of recurrent states, and of records of them.", taken, "kind")

    def add_adapters(self, uses: Sequence[AdapterUse], places: object, names: AdapterBook) -> None:
        """Add vLLM's `lora_requests_info`: which adapters requests use, and which they wait for, in its labels."""
        running = ",".join(names.name_of(use.adapter) for use in uses if use.users)
        waiting = ",".join(names.name_of(use.adapter) for use in uses if use.held)
        labels = (*LABELS, "max_lora", "running_lora_adapters", "waiting_lora_adapters")
        info = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use, and when.", labels=labels)
        info.add_metric((*self._labels, str(places), running, waiting), time.time())
        self._families.append(info)

    def add_prompts(self, prompts: Sequence[PromptProgress]) -> None:
        """Add how much there is to read of the prompts that were begun."""
        left = sum(each.total - each.read for each in prompts)
        longest = max((each.seconds_left or 0.0 for each in prompts), default=0.0)
        self.gauge("sluice:prompt_tokens_left", "Tokens still to be read, of prompts that were begun.", left)
        self.gauge("sluice:prompt_seconds_left", "Until the last of them is read, as expected.", longest)

    def add_drafts(self, drafts: DraftTotals) -> None:
        """Add what became of guessed tokens. Without --speculative-algorithm there are zeros."""
        self.counter("vllm:spec_decode_num_drafts", "Rows with drafts.", drafts.rows)
        self.counter("vllm:spec_decode_num_draft_tokens", "Their drafts.", drafts.drafted)
        self.counter("vllm:spec_decode_num_accepted_tokens", "Drafts that were right.", drafts.accepted)
        by_position = {str(position): count for position, count in enumerate(drafts.accepted_at or (0,))}
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        self.counter(name, "The same, by position in the row.", by_position, "position")

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
            (self.gauge, "sluice:tier_retired_pages", "Pages that were lost and are not used again.", "retired"),
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

    def add_kv_events(self, counts: KvEventCounts) -> None:
        """Add what became of KV events. Without --kv-events there are zeros."""
        self.counter("sluice:kv_event_batches", "Batches of KV events that were published.", counts.published)
        self.counter("sluice:kv_event_batches_dropped", "Those that found the queue full.", counts.dropped)
        self.counter("sluice:kv_event_batches_replayed", "Those that subscribers asked for again.", counts.replayed)

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


def add_metrics(
    routes: Routes,
    backend: Backend,
    metrics: Metrics,
    *,
    wait_seconds: float = WAIT_SECONDS,
    more: Callable[[Page], None] = lambda page: None,
) -> None:
    """Add the route.

    Args:
        more: adds metrics beside those of every server.
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
        page.add_kv_events(backend.engine.kv_events)
        page.add_requests(metrics)
        if stats is not None and service is not None:
            page.add_engine(stats)
            page.add_states(service.memory)
            (page_size,) = (setting.value for setting in service.settings if setting.name == "page_size")
            page.add_cache_config(page_size, stats.occupancy.total_pages)
            (places,) = (setting.value for setting in service.settings if setting.name == "max_loras")
            page.add_adapters(stats.occupancy.adapters, places or 0, service.client.adapters)
        more(page)
        return Response(page.render(), media_type=CONTENT_TYPE)


async def _stats(client: EngineClient, wait_seconds: float) -> Stats | None:
    """Return the engine's counts, or those of its last answer if it is late; None if there is no engine."""
    try:
        return await asyncio.wait_for(client.stats(), wait_seconds)
    except TimeoutError:
        return client.latest
    except EngineGone:
        return None
