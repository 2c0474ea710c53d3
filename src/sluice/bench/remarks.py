"""What a reader of the numbers has to know to believe them, or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sluice.bench.answers import CountedBy
from sluice.bench.metrics import Summary, percentile
from sluice.bench.records import Record, Run

LATE_MATTERS = 0.1
"""The client's own lateness is worth a remark from this share of the median TTFT."""

CACHED_MATTERS = 0.02
"""Share of prompt tokens from a cache that is worth a remark, if there should be none."""


def is_whole(record: Record) -> bool:
    """Several tokens in a single event: this answer was not streamed."""
    return len(record.arrivals) == 1 and record.num_tokens > 1


def streams_nothing(records: Sequence[Record]) -> bool:
    """Every answer that could have shown that it is streamed came in one event."""
    telling = [record for record in records if record.num_tokens > 1]
    return bool(telling) and all(map(is_whole, telling))


def begins_alike(settings: Mapping[str, Any]) -> bool:
    """Prompts of this workload have beginnings in common, so that a prefix cache is to find some of them."""
    workload, target = settings.get("workload", {}), settings.get("target", {})
    return bool(
        workload.get("shared_prefix_tokens", 0)
        or workload.get("turns", 1) > 1
        or not workload.get("unique_prompts", True)
        or target.get("endpoint") == "chat"  # its template precedes every prompt
    )


def remarks(run: Run, summary: Summary, settings: Mapping[str, Any]) -> Iterator[str]:
    """One sentence each.

    Args:
        settings: of the result that holds the run.
    """
    records = run.requests
    if summary.failed:
        yield (
            f"{summary.failed} of {summary.requests} requests failed; the latencies of what they did not give are in"
            " no percentile"
        )
    if streams_nothing(records):
        yield "the server does not stream: every answer came in one event, so ITL and TPOT are 0 and TTFT is the whole"
    elif summary.bundled_events:
        share = 100 * summary.bundled_events / summary.events
        yield (
            f"{share:.1f}% of the events carried several tokens ({summary.bundled_tokens} tokens came with another one;"
            " their ITL is 0)"
        )
    tokens = summary.output_tokens
    if summary.together and not streams_nothing(records):
        yield f"{100 * summary.together / tokens:.1f}% of the tokens came in the same read as the one before (ITL 0)"
    if any(record.counted_by is CountedBy.EVENTS for record in records if not record.failed):
        yield "the server does not count its tokens: one is assumed for each event with text (--tokenizer counts them)"
    if summary.short_answers:
        yield f"{summary.short_answers} answers ended before the length that was asked for (--ignore-eos)"
    if summary.cached_share > CACHED_MATTERS and not begins_alike(settings):
        yield (
            f"{100 * summary.cached_share:.0f}% of the prompt tokens were in the server's cache, though no two prompts"
            " begin alike: it had this workload before; another --seed has other prompts"
        )
    yield from _client_remarks(run, summary)


def _client_remarks(run: Run, summary: Summary) -> Iterator[str]:
    late, typical = summary.all.late.p99, summary.all.ttft.p50
    if late is not None and typical is not None and late > LATE_MATTERS * typical:
        yield (
            f"requests left up to {1000 * late:.1f} ms (p99) after they were due: the client, or --concurrency, held"
            " them; TTFT and end to end contain it, 'after send' does not"
        )
    if run.lag:
        lag = percentile(sorted(run.lag), 99)
        if typical is not None and lag > LATE_MATTERS * typical:
            yield f"the client's event loop was late by {1000 * lag:.1f} ms (p99): this machine is too busy"
