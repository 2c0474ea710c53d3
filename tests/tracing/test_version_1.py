"""Traces of version 1, recorded before the file's keys were renamed, are still read, summed up, drawn and replayed.

`resident.jsonl`: two steps in flight, tiers, a restored cache, prefix hits, a preemption, log-probabilities, an abort,
a flush, a lost device, resumed requests, and steps, rows and copies that fail. `offloaded.jsonl`: a context longer than
the device whose pages come late and then fail. `no_token_ids.jsonl`: written with --no-trace-token-ids.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from sluice.scheduler.prefill import PrefillAdder
from sluice.tracing.file import TraceReader
from sluice.tracing.perfetto import write_perfetto
from sluice.tracing.replay import Replayed, ReplayError, replay
from sluice.tracing.run import read_run
from sluice.tracing.summary import Summary, report, summarize

FOLDER = Path(__file__).parent / "version_1"
RESIDENT, OFFLOADED, NO_TOKEN_IDS = (FOLDER / f"{name}.jsonl" for name in ("resident", "offloaded", "no_token_ids"))


def summary_of(path: Path) -> Summary:
    with TraceReader(path) as trace:
        return summarize(trace.header, read_run(trace), gap_ms=5.0)


def replayed(path: Path) -> Replayed:
    with TraceReader(path) as trace:
        return replay(trace)


def test_every_plan_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was recorded before the end of a prompt could exceed the chunk size, and is replayed without that rule."""
    monkeypatch.setattr(PrefillAdder, "_may_overshoot", lambda *_: False)
    found = replayed(RESIDENT)
    assert found.divergence is None, str(found.divergence)
    assert (found.steps, found.calls, found.unended) == (68, 211, 0)


def test_a_plan_that_is_made_in_another_way_today_is_named() -> None:
    """A prompt of nine tokens was cut at the chunk size of eight."""
    divergence = replayed(RESIDENT).divergence
    assert divergence is not None
    assert (divergence.where, divergence.recorded, divergence.replayed) == (
        "step 19, planned", "request 2 [0, 8)", "request 2 [0, 9)",
    )  # fmt: skip


def test_contexts_on_a_disk_cannot_be_replayed() -> None:
    """Their steps ended at deadlines, which are in no call of the scheduler."""
    with pytest.raises(ReplayError, match="version 1 with offloaded requests on a disk"):
        replayed(OFFLOADED)


def test_without_token_ids_it_cannot_be_replayed() -> None:
    with pytest.raises(ReplayError, match="without token ids"):
        replayed(NO_TOKEN_IDS)


def test_the_summary_is_what_it_was() -> None:
    summary = summary_of(RESIDENT)
    kinds = (summary.mixed_steps, summary.decode_steps, summary.prefill_steps, summary.other_steps)
    assert kinds == (3, 40, 9, 16)
    assert (summary.prefill_tokens, summary.decode_tokens, summary.output_tokens) == (57, 47, 51)
    assert summary.outcomes == {"length": 5, "error": 3, "abort": 1, "stop": 1}
    assert (summary.prompt_tokens, summary.cached_tokens) == (66, 16)
    assert (summary.stored_pages, summary.loaded_pages, summary.failed_copies) == (92, 4, 5)
    assert [gap.request_ids for gap in summary.gaps] == [(9,)]
    assert [row.request_id for row in summary.table if row.chunks == 2] == [2, 9, 10]
    assert "step 20: the step failed: InjectedFault: wait 20" in report(summary, table=True)


def test_the_summary_of_an_offloaded_context_is_what_it_was() -> None:
    summary = summary_of(OFFLOADED)
    assert summary.bound_by == {"max_running_requests": 21, "nothing": 3}
    assert [failure.message for failure in summary.row_failures] == ["a page cannot be read"]
    assert [(row.prompt_tokens, row.chunks, row.outcome) for row in summary.table] == [
        (48, 5, "error"), (1, 1, "length"), (3, 1, "length"),
    ]  # fmt: skip


def test_lengths_are_read_where_tokens_were_left_out() -> None:
    rows = summary_of(NO_TOKEN_IDS).table
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(6, 3), (4, 1)]


@pytest.mark.parametrize(("path", "events"), [(RESIDENT, 244), (OFFLOADED, 86), (NO_TOKEN_IDS, 21)])
def test_a_timeline_is_drawn(path: Path, events: int) -> None:
    with TraceReader(path) as trace:
        assert write_perfetto(trace.header, trace, io.StringIO()) == events
