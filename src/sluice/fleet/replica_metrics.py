"""What `/metrics` of a fleet has beside the metrics of a server: each replica by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.engine.messages import Stats
from sluice.fleet.apart import Apart
from sluice.fleet.choosing import Chooser
from sluice.fleet.totals import FleetTotals
from sluice.http.observe.metrics_page import Page

LABEL = "replica"


def replica_metrics(chooser: Chooser, totals: FleetTotals, apart: Apart | None = None) -> Callable[[Page], None]:
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
