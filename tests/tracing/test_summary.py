"""The numbers of a trace, on runs in which every time is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from life_traces import summary_of
from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import Abort, Submit
from sluice.testing import Faults, ManualLink, ShadowRunner, ShadowStep, ShadowTiers, resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.perfetto import Converter
from sluice.tracing.run import Prefill
from sluice.tracing.spread import percentile, spread
from sluice.tracing.summary import LatencySpread, Preempted, report
from sluice.types import NGRAM, BatchPlan, BatchResult, DraftLimits, PriorityClass, TierLimits
from worlds import Arrival, World, limits_of, offload_of

WORLD = World(limits_of(chunk=64, batch=80), num_pages=64, page_size=4)
STREAM = Arrival(0, Submit(0, (1, 0, 1), resolved(12)))
TIGHT = World(limits_of(chunk=16), num_pages=12, page_size=2)
FOR_TWO = [
    Arrival(0, Submit(0, (0, 1), resolved(20))),
    Arrival(0, Submit(1, (1, 0, 1, 0, 1), resolved(8))),
    Arrival(0, Submit(2, (1, 1, 0), resolved(8))),
]
"""Memory for two of them at the end."""
LONG = Arrival(3, Submit(1, (0,) * 60, resolved(2)))
"""Arrives when the first request has three tokens, and is prefilled in one step."""


def record(
    path: Path, *arrivals: Arrival, world: World = WORLD, at_launch: bool = True, faults: Faults | None = None
) -> Path:
    play(recorded_engine(world, trace_file(path, world), at_launch=at_launch, faults=faults), arrivals)
    return path


def test_numbers_of_a_known_run(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "trace", STREAM, LONG))
    assert (summary.steps, summary.mixed_steps, summary.decode_steps, summary.prefill_steps) == (12, 1, 10, 1)
    assert (summary.prefill_tokens, summary.decode_tokens, summary.output_tokens) == (63, 12, 14)
    assert (summary.prompt_tokens, summary.cached_tokens) == (63, 0)
    assert summary.bound_by == {"nothing": 12}
    assert summary.outcomes == {"length": 2}
    assert summary.device_ms == LatencySpread(p50=1.0, p99=8.0, max=8.0)
    assert summary.seconds == pytest.approx((1.3 + 2 * 1 + 8 + 2 + 7 * 1) / 1000)
    first, second = summary.table
    assert (first.ttft_ms, first.itl_p50_ms, first.itl_max_ms) == (1.3, 1.0, 8.0)
    assert (second.added_at, second.queued_ms, second.ttft_ms, second.chunks) == (0.0033, 0.0, 8.0, 1)


def test_a_gap_names_who_arrived_in_it(tmp_path: Path) -> None:
    """A prompt of a million tokens that is received and queued shows in no step."""
    short = [Arrival(3, Submit(n, (0,) * n, resolved(2))) for n in (2, 3, 4)]
    summary = summary_of(record(tmp_path / "trace", STREAM, LONG, *short))
    (gap,) = summary.gaps
    assert [(each.request_id, each.prompt_len) for each in gap.arrivals] == [(1, 60), (4, 4), (3, 3)]
    line = "arrived meanwhile: request 1 with 60 prompt tokens, request 4 with 4 prompt tokens, request 3 with 3"
    assert f"    {line} prompt tokens, 1 more\n" in report(summary, table=False) + "\n"
    assert "arrived" not in report(summary_of(record(tmp_path / "alone", STREAM), 0.5), table=False)


@pytest.mark.parametrize("at_launch", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_gap_is_blamed_on_the_step_that_made_it(tmp_path: Path, depth: int, at_launch: bool) -> None:
    """A cpu that plans ahead computes the long prompt at its launch, before the step before it is committed: the token
    waits for a step that ends only later."""
    limits = replace(WORLD.limits, lookahead=depth - 1)
    world = replace(WORLD, limits=limits, depth=depth, late=depth > 1)
    summary = summary_of(record(tmp_path / "trace", STREAM, LONG, world=world, at_launch=at_launch))
    (gap,) = summary.gaps
    assert gap.request_ids == (0,)
    assert gap.ms == pytest.approx(8.0)
    (cause, *_) = gap.causes
    assert cause.prefills == (Prefill(1, 0, 60),)
    assert cause.num_decodes == 1
    assert cause.ms == gap.runner_ms == pytest.approx(8.0)


def test_requests_that_wait_for_the_same_share_a_gap(tmp_path: Path) -> None:
    offload = [Arrival(0, Submit(i, (i % 2, 1), resolved(10))) for i in range(3)]
    late = Arrival(4, Submit(9, (0,) * 60, resolved(1)))
    summary = summary_of(record(tmp_path / "trace", *offload, late))
    (gap,) = summary.gaps
    assert gap.request_ids == (0, 1, 2)
    assert "3 decodes" in report(summary, table=False)
    assert "between two tokens of a stream: 3\n" in report(summary, table=False)


def test_only_gaps_over_the_threshold_are_listed(tmp_path: Path) -> None:
    path = record(tmp_path / "trace", STREAM, LONG)
    assert [gap.ms for gap in summary_of(path, 1.5).gaps] == [8.0, 2.0]
    assert [gap.ms for gap in summary_of(path, 7.9).gaps] == [8.0]
    assert summary_of(path, 8.1).gaps == ()


def test_a_gap_of_many_steps_names_the_longest(tmp_path: Path) -> None:
    """A prefill-first schedule computes a prompt in many steps while the other request gets no token."""
    world = replace(WORLD, limits=limits_of(schedule="prefill-first", chunk=8), num_pages=64)
    summary = summary_of(record(tmp_path / "trace", STREAM, LONG, world=world))
    gap = summary.gaps[0]
    assert gap.request_ids == (0,)
    assert gap.num_steps == 8
    assert [cause.ms for cause in gap.causes] == [2.2, 2.0, 1.8]
    assert gap.runner_ms == pytest.approx(gap.ms)
    assert summary.bound_by["chunked_prefill_size"] == 6
    assert (summary.mixed_steps, summary.prefill_steps) == (0, 8)


def test_cached_tokens_are_counted_once(tmp_path: Path) -> None:
    again = Arrival(30, Submit(1, (1,) * 18, resolved(2)))
    path = record(tmp_path / "trace", Arrival(0, Submit(0, (1,) * 18, resolved(2))), again)
    summary = summary_of(path)
    assert (summary.prompt_tokens, summary.cached_tokens) == (36, 16)
    assert [row.cached_tokens for row in summary.table] == [0, 16]


OFFLOAD = offload_of(load_cost=8.0)
OFFLOADED = World(limits_of(chunk=8), num_pages=16, page_size=4, tiers=TierLimits(disk_pages=40), offload=OFFLOAD)


def test_a_context_longer_than_the_device_is_named_with_what_it_costs(tmp_path: Path) -> None:
    """Its work lies in slices of chunks over many steps. They were counted as steps of nothing, its cached prompt as
    computed, its decodes as prefills, and its pages that could not be read were missing."""
    path, bad = tmp_path / "trace", set[str]()
    shadow = ShadowRunner(page_size=4, vocab_size=2, tiers=ShadowTiers(), read_fails=lambda _: bool(bad))
    engine = recorded_engine(OFFLOADED, trace_file(path, OFFLOADED), shadow=shadow)
    link, long = engine.link, tuple(position // 3 % 2 for position in range(36))
    assert isinstance(link, ManualLink)
    for number, prompt in enumerate((long, long, (1, *long))):
        bad |= {"pages"} if number == 2 else set()
        link.put(Submit(number, prompt, resolved(3, seed=number)))
        engine.step()
        while not engine.is_idle:
            engine.step()
    engine.close()
    summary = summary_of(path, 0.5)
    first, second, third = summary.table
    assert (first.cached_tokens, first.chunks, first.output_tokens) == (0, 5, 3)
    assert (second.cached_tokens, second.chunks, second.output_tokens) == (32, 1, 3)
    assert summary.cached_tokens == 32
    assert summary.prompt_tokens == 36 + 36 + 37
    assert summary.slice_steps > 10
    assert third.error == "a page cannot be read"
    assert [(failure.request_id, failure.message) for failure in summary.row_failures] == [(2, third.error)]
    shown = report(summary, table=True)
    assert f"{summary.slice_steps} of slices of chunks" in shown
    assert "request 0 computed 1 offloaded token from 36, work items " in shown
    with TraceReader(path) as trace:
        events = list(Converter(trace.header).events(trace))
    drawn = [event["args"] for event in events if event["name"] == "offloaded 1"]
    assert sum(args["sampled"] for args in drawn) == 4
    assert all(args["to item"] <= args["of items"] for args in drawn)
    counted = [event["args"] for event in events if event["name"] == "tokens a step"]
    assert sum(args["decode"] for args in counted) == 4


class Staged:
    """A pipeline of two stages: of each step the first computes half a millisecond, the second a quarter."""

    def __init__(self) -> None:
        self._inner = ShadowRunner(page_size=4, vocab_size=2)

    def launch(self, plan: BatchPlan) -> StagedStep:
        return StagedStep(self._inner.launch(plan))

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class StagedStep:
    inner: ShadowStep

    def wait(self) -> BatchResult:
        return replace(self.inner.wait(), stage_micros=(500, 250))


def test_the_idle_time_of_stages_is_shown(tmp_path: Path) -> None:
    """Twelve steps of a millisecond, the first with three tokens of a prompt."""
    path = tmp_path / "trace"
    play(recorded_engine(WORLD, trace_file(path, WORLD), shadow=Staged()), [STREAM])
    summary = summary_of(path)
    assert summary.stages_idle == pytest.approx((1 - 6 / 12.3, 1 - 3 / 12.3))
    assert "stages    idle while steps were in flight: 51.2%, 75.6%" in report(summary, table=False)


def test_preemptions_are_counted(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "trace", *FOR_TWO, world=TIGHT))
    assert summary.preempted == (Preempted(2, 1),)
    assert [row.preemptions for row in summary.table] == [0, 0, 1]
    assert "preempted for want of memory or for a higher priority: once; request 2" in report(summary, table=False)


def test_aborted_and_open_requests_are_named_so(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    engine = recorded_engine(WORLD, trace_file(path, WORLD))
    link = engine.link
    assert isinstance(link, ManualLink)
    link.put(STREAM.submit, LONG.submit)
    engine.step()
    link.put(Abort(0))
    engine.step()
    engine.close()
    summary = summary_of(path)
    assert {row.request_id: row.outcome for row in summary.table} == {0: "abort", 1: "length"}
    assert summary.table[0].output_tokens == 1


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    summary = summary_of(record(tmp_path / "trace"))
    assert (summary.steps, summary.device_ms, summary.seconds) == (0, LatencySpread(0, 0, 0), 0)
    assert "steps     0: 0 mixed (-)" in report(summary, table=True)


@pytest.mark.parametrize("depth", [1, 2])
def test_missing_lines_are_reported(tmp_path: Path, depth: int) -> None:
    """The disk was full for a while: figures would be wrong without a hint."""
    world = replace(WORLD, limits=replace(WORLD.limits, lookahead=depth - 1), depth=depth, late=depth > 1)
    lines = record(tmp_path / "trace", STREAM, LONG, world=world).read_text().splitlines(keepends=True)
    kept = tmp_path / "kept"
    for cut, lost in ((slice(0, 0), 0), (slice(6, 7), 2), (slice(1, 2), 1), (slice(-2, None), 0)):
        gone = range(*cut.indices(len(lines)))
        kept.write_text("".join(line for index, line in enumerate(lines) if index not in gone))
        found = summary_of(kept)
        assert found.lost_calls == lost, cut
        assert ("lines are missing" in report(found, table=False)) == (lost > 0)


def test_percentiles_by_rank() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([5.0], 0.99) == 5.0
    assert spread([3.0, 1.0, 2.0]) == LatencySpread(2.0, 3.0, 3.0)
    assert spread(range(1, 201)) == LatencySpread(100, 198, 200)


def test_how_a_target_was_kept(tmp_path: Path) -> None:
    """Whether steps are late by their decodes, by wrong predictions or by a margin that is too small shows nowhere
    else."""
    world = replace(WORLD, limits=replace(limits_of(chunk=64), itl_target=4000), num_pages=200)
    path = record(tmp_path / "trace", STREAM, LONG, world=world)
    summary = summary_of(path)
    pace = summary.pace
    assert pace is not None
    assert pace.target_ms == 4.0
    assert list(pace.regimes) == ["prefill", "decode", "mixed"]
    assert sum(regime.steps for regime in pace.regimes.values()) == summary.steps
    assert list(pace.late) == ["0%", "10%", "25%"]
    shown = report(summary, table=False)
    assert (
        f"ITL target of 4 ms, {pace.streaming} steps with streams; above it: {pace.late['0%']} by more than 0%" in shown
    )
    assert f"mixed {pace.regimes['mixed'].steps:>16} steps: predicted" in shown
    assert summary_of(record(tmp_path / "other", STREAM)).pace is None


def test_first_tokens_by_class(tmp_path: Path) -> None:
    """Whether a class keeps its target is what its operator asks a trace first. The arrival counts: that at the server,
    before the request was sent to the engine."""
    classes = (PriorityClass("interactive", 5000), PriorityClass("standard", 10**7), PriorityClass("batch", 6 * 10**7))
    world = replace(WORLD, limits=limits_of(chunk=16, policy="deadline", classes=classes))
    soon = Submit(0, (1, 1), resolved(2), priority_class="interactive", arrived=1)
    late = Submit(1, (0,) * 60, resolved(2), priority_class="interactive", arrived=1)
    batch = Submit(2, (1, 0), resolved(2), priority_class="batch", arrived=1)
    summary = summary_of(record(tmp_path / "trace", *(Arrival(0, each) for each in (soon, late, batch)), world=world))
    interactive, _, of_batch = summary.classes.values()
    assert (interactive.requests, interactive.first_tokens, interactive.on_time) == (2, 2, 1)
    assert (of_batch.requests, of_batch.on_time) == (1, 1)
    assert [row.on_time for row in summary.table] == [True, False, True]
    text = report(summary, table=True)
    assert "interactive        2 requests: TTFT p50 " in text
    assert "; 1 of 2 within 0.005 s" in text
    assert text.splitlines()[-1].split()[-2:] == ["batch", "yes"]


def test_drafts_are_summed_up_by_request_and_in_all(tmp_path: Path) -> None:
    limits = replace(WORLD.limits, num_draft_tokens=4)
    world = replace(WORLD, limits=limits, drafting=DraftLimits(NGRAM))
    path = record(tmp_path / "trace", Arrival(0, Submit(0, (1, 0, 1), resolved(60))), LONG, world=world)
    summary = summary_of(path)
    first, second = summary.table
    assert (first.output_tokens, second.output_tokens) == (60, 2)
    assert first.drafted > first.accepted > 0
    assert summary.drafted == first.drafted + second.drafted
    assert summary.accepted == first.accepted + second.accepted
    # The row that ends a prompt brings a token, and each decode one with its accepted drafts.
    assert summary.output_tokens == 2 + summary.decode_tokens + summary.accepted
    assert summary.prefill_tokens == 63, "drafts are no prefill"
    assert summary.acceptance_length == pytest.approx(1 + summary.accepted / summary.draft_rows, abs=0.001)
    text = report(summary, table=True)
    assert f"drafts    {summary.drafted} in {summary.draft_rows} rows, {summary.accepted} accepted" in text
    assert "drafted  accepted  a row" in text
    assert "drafts  " not in report(summary_of(record(tmp_path / "none", STREAM)), table=True)


def test_drafts_behind_a_token_that_ends_the_answer_are_not_summed_up(tmp_path: Path) -> None:
    limits = replace(WORLD.limits, num_draft_tokens=6)
    world = replace(WORLD, limits=limits, drafts_right=1.0, drafts_eager=True)
    path = record(tmp_path / "trace", Arrival(0, Submit(0, (0, 0, 1), resolved(12, stop_token_ids=(1,)))), world=world)
    summary = summary_of(path)
    (row,) = summary.table
    assert 0 < summary.accepted == row.accepted < row.output_tokens < summary.drafted
