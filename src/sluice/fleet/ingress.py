"""The HTTP application of an ingress. It is that of one server, whose engine is the replicas."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.applications import Starlette

from sluice.engine.messages import Stats
from sluice.fleet.disaggregated import DisaggregatedPrefill
from sluice.fleet.identity import Identity
from sluice.fleet.link import EPOCH, FleetLink
from sluice.fleet.options import RAY_PREFIX, FleetPlan, limits_of
from sluice.fleet.replica_router import ReplicaRouter
from sluice.fleet.replicas import Replicas
from sluice.fleet.totals import FleetTotals
from sluice.http.apis.responses.store import ResponseStore
from sluice.http.app import create_app
from sluice.http.base.auth import read_keys
from sluice.http.base.backend import Backend
from sluice.http.base.body import BodyLimits
from sluice.http.base.calls import Listener, RequestLog
from sluice.http.base.chat_template_file import read_chat_template
from sluice.http.base.early_tokenizer import EarlyTokenizer
from sluice.http.base.isolation import read_isolation
from sluice.http.base.origins import allowed_origins
from sluice.http.base.parsers import check_parsers
from sluice.http.base.served_model import ServedModel
from sluice.http.base.unknown_fields import IgnoredFieldsLog
from sluice.http.edge.hosts import answered_names
from sluice.http.observe.engine_metrics import Page
from sluice.http.observe.http_metrics import Metrics
from sluice.http.observe.otel import open_traces
from sluice.process.client import EngineClient
from sluice.process.engine_process import freeze_gc
from sluice.process.engine_state import EngineState
from sluice.process.wire import Ready
from sluice.routing.dispatch import Dispatcher
from sluice.routing.policies import RouterOptions, make_policy

LOOK_SECONDS = 1.0
"""Seconds between two looks at what replicas have to do."""
LEAST_PATIENCE = 5.0
"""Seconds that a request waits for a replica, however short `--restart-timeout` is: a busy machine needs some."""

LABEL = "replica"


@dataclass(frozen=True)
class IngressParts:
    """The application, and what is to be closed after it."""

    app: Starlette
    link: FleetLink
    watching: asyncio.Task[None]
    """Tells the chooser what replicas have to do."""
    closing: contextlib.ExitStack

    @classmethod
    async def open(
        cls, plan: FleetPlan, ready: Ready, replicas: Replicas, prefill: Replicas | None = None
    ) -> IngressParts:
        """Make the application of a fleet.

        Args:
            ready: what the engine of a replica is like.
            prefill: replicas that compute prompts alone; None: there are none.

        Raises:
            ConfigError: the API keys or the chat template cannot be read.
            TokenizerError: the tokenizer cannot be used.
        """
        server = plan.server
        keys, isolation, template = read_keys(server), read_isolation(server, plan.engine), read_chat_template(server)
        check_parsers(server)
        state, metrics = EngineState(), Metrics()
        client = EngineClient(observer=metrics, recovery=state.stats)
        with contextlib.ExitStack() as undo:
            listeners: list[Listener] = [RequestLog(), IgnoredFieldsLog()]
            if server.otlp_traces_endpoint is not None:
                listeners.append(undo.enter_context(contextlib.closing(open_traces(server.otlp_traces_endpoint))))
            tokenizers = EarlyTokenizer(server, None, template)
            model = await ServedModel.open(server, ready, tokenizer_folder(plan, ready), tokenizers, plan.given)
            undo.callback(model.close)
            chooser = chooser_of(plan, ready, client.now)
            apart = None
            if prefill is not None:
                apart = DisaggregatedPrefill(prefill, chooser_of(plan, ready, client.now), limits_of(plan.fleet))
            patience = max(server.restart_timeout, LEAST_PATIENCE)
            link = FleetLink(client, replicas, chooser, state, patience, apart=apart)
            metrics.model, metrics.classes = model.names[0], ready.limits.classes
            backend = Backend(state)
            backend.open(replace(model.service(ready, client), prompts=None))  # replicas have their own numbers
            client.adapters.start_with(ready.adapters)
            client.attach(link.send, EPOCH)
            state.serving(None, ready.disabled_tiers)
            freeze_gc()
            app = create_app(
                backend,
                body_limits=BodyLimits(server.max_request_bytes),
                strict_fields=server.strict_fields,
                api_keys=keys,
                hosts=answered_names(server, ip_address_of(server.host)),
                origins=allowed_origins(server),
                isolation=isolation,
                metrics=metrics,
                listeners=listeners,
                responses=ResponseStore(server.max_stored_responses, server.max_stored_response_bytes),
                more_metrics=replica_metrics(chooser, link.totals, apart),
            )
            watching = asyncio.create_task(link.watch(LOOK_SECONDS), context=Context())
            return cls(app, link, watching, undo.pop_all())

    async def close(self) -> None:
        """Abort what runs, and end the processes of the application."""
        self.watching.cancel()
        await asyncio.wait({self.watching})
        await self.link.close()
        self.closing.close()


def chooser_of(plan: FleetPlan, ready: Ready, now: Callable[[], float]) -> ReplicaRouter:
    """Return what chooses replicas, by the policy that the options name.

    Args:
        now: returns seconds.
    """
    cache = ready.config.cache
    assert cache.page_size is not None and cache.max_total_tokens is not None, f"not resolved: {cache}"
    size, behind = (cache.max_total_tokens, host_tokens(ready)) if cache.enable_prefix_caching else (0, 0)
    # Ray's own router chooses without one.
    name = "round-robin" if plan.fleet.router == RAY_PREFIX else plan.fleet.router
    policy = make_policy(name, RouterOptions(size, cache.page_size, tier_tokens=behind))
    return ReplicaRouter(Dispatcher(policy), Identity.of(ready), cache.page_size, now)


def host_tokens(ready: Ready) -> int:
    """Return how many tokens the host tier of a replica holds."""
    host_bytes, token_bytes = ready.config.cache.kv_host_bytes, ready.limits.token_bytes
    return host_bytes // token_bytes if host_bytes is not None and token_bytes else 0


def tokenizer_folder(plan: FleetPlan, ready: Ready) -> Path:
    """Return the folder of the tokenizer on this machine, which may not be that of a replica."""
    from sluice.models.hub import resolve_checkpoint

    if (folder := Path(ready.tokenizer_folder)).is_dir():
        return folder
    model = plan.engine.model
    if model.tokenizer is not None:
        return resolve_checkpoint(model.tokenizer, cache=model.cache, weights=False)
    return resolve_checkpoint(model.model, revision=model.revision, cache=model.cache, weights=False)


def ip_address_of(host: str) -> str:
    """Return the address that a proxy listens on."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def replica_metrics(
    chooser: ReplicaRouter, totals: FleetTotals, apart: DisaggregatedPrefill | None = None
) -> Callable[[Page], None]:
    """Return what adds the metrics of the replicas to a page.

    Args:
        apart: the replicas that compute prompts alone; None: there are none.
    """

    def add(page: Page) -> None:
        stats, counts = totals.latest, chooser.counts()
        page.gauge("sluice:replicas", "Replicas that may serve.", len(chooser.replicas))
        kept_out, sent = counts.kept_out, dict(counts.sent)
        if apart is not None:
            prefill = apart.chooser.counts()
            page.gauge("sluice:prefill_replicas", "Replicas that compute prompts alone.", len(apart.chooser.replicas))
            page.counter("sluice:failed_handovers", "Prompts whose pages went nowhere.", apart.failed_handovers)
            kept_out, sent = kept_out + prefill.kept_out, {**sent, **prefill.sent}
        page.gauge("sluice:replicas_kept_out", "Replicas of another model or version.", kept_out)
        page.counter("sluice:replica_requests", "Requests sent to a replica.", sent, LABEL)
        page.gauge("sluice:replica_running", "Requests on its device.", _of(stats, _running), LABEL)
        page.gauge("sluice:replica_waiting", "Requests that wait there.", _of(stats, _waiting), LABEL)
        page.gauge("sluice:replica_kv_usage", "Share of its pages in use.", _of(stats, _usage), LABEL)

    return add


def _of(stats: Mapping[str, Stats], value: Callable[[Stats], float]) -> dict[str, float]:
    return {key: value(each) for key, each in stats.items()}


def _running(stats: Stats) -> float:
    return stats.occupancy.running


def _waiting(stats: Stats) -> float:
    return stats.occupancy.waiting


def _usage(stats: Stats) -> float:
    occupancy = stats.occupancy
    return 1 - (occupancy.free_pages + occupancy.cached_pages) / max(1, occupancy.total_pages)
