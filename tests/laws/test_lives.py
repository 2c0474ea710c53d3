"""Random lives of whole engines, every law checked after every call, and a census of what they met.

Some of the lives are watched: they are recorded, and what is said of the prefix cache is compared with the prefix tree
after every step. Their traces are planned again, simulated, drawn and summed up.

A law protects from a bug only if some life comes to where the bug is. So each family of lives names the statuses and
events that it exists for, and fails if one of them was never met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from life_traces import check_trace
from page_mirror import PageMirror
from recorded import trace_file
from scenarios import (
    Scenario,
    random_block_scenario,
    random_draft_scenario,
    random_guess_scenario,
    random_offload_scenario,
    random_reload_scenario,
    random_scenario,
    random_sliced_scenario,
    random_state_scenario,
    random_window_scenario,
    run,
)
from slow import lives
from sluice.scheduler.request import Status
from sluice.types import Bound, FinishReason, Tier

ELSEWHERE = (FinishReason.OVERLOAD, FinishReason.TIER_UNAVAILABLE)
"""Ends of other lives, or of requests that are refused."""
OF_ALL = [
    *(status.value for status in Status if status not in (Status.LOADING, Status.OFFLOADED, Status.GONE)),
    *(
        f"abort while {status}"
        for status in ("waiting", "compiling", "partial", "decoding", "forced", "draining", "gone")
    ),
    *(f"end: {reason}" for reason in FinishReason if reason not in ELSEWHERE),
    *("preempted while partial", "preempted while decoding", "preempted while forced"),
    *("row failed", "step failed", "launch failed", "copies failed with their step", "flush", "device lost"),
    *(f"store of the {tier} {end}" for tier in ("host", "disk") for end in ("ended", "failed")),
]
OF_LAYERS = [
    *("layers of a chunk", "layers of two chunks", "layers that score a prompt", "layers that embed"),
    *("layers beside decodes", "layers beside whole chunks"),
    *("layers of several parts", "layers of a pipeline's single part"),
    *("abort in a sliced chunk", "preempted in a sliced chunk"),
]
OF_RELOADS = [
    "loading",
    *(f"abort while loading, {progress}" for progress in ("no copy under way", "under way", "loaded")),
    *(f"load of the {tier} {end}" for tier in ("host", "disk") for end in ("ended", "failed")),
    *("prefix from the host", "prefix from the disk", "flush while loading"),
]
OF_LONG_CONTEXTS = [
    *("offloaded", "abort while offloaded", "abort while offloaded, in a chunk", "preempted while offloaded"),
    *("opened over several steps", "given back over several steps", "no room after some steps"),
    *("blocks loaded", "block unreadable", "page lost", "slice failed", f"end: {FinishReason.TIER_UNAVAILABLE}"),
    *("offload of the host ended", "offload of the disk ended", "offload of the disk failed"),
    *(f"bound by {bound}" for bound in (Bound.TIER_PAGES, Bound.OFFLOAD_BUDGET, Bound.DISK_READS)),
]


OF_DRAFTS = [
    *(f"{some} of the drafts accepted" for some in ("all", "some", "none")),
    *("tokens forced behind drafts", "no token of a row with drafts", "stopped among the drafts"),
    *("abort with drafts in flight", "preempted with drafts in flight", "accepted of a request that was preempted"),
    *("drafts beside prompts", "drafts beside a row with a late token", "pages of drafts given back"),
    *("drafts of the runner", "drafts of an offloaded row", "drafts of an offloaded row, in several slices"),
]

OF_BLOCKS = [
    *("abort with drafts in flight", "preempted with drafts in flight", "accepted of a request that was preempted"),
    *("no token of a row with drafts", "stopped among the drafts", "drafts beside prompts", "preempted while partial"),
    *("row failed", "step failed", "device lost", "prefix from the host", "prefix from the disk"),
]

OF_WINDOWS = [
    *("went on behind a window", "went on before a hole", "went on between holes"),
    *("a hole was filled", "a page of windows was taken"),
    *("preempted while decoding", "pages of drafts given back", "layers of a chunk", "device lost"),
]


OF_STATES = [
    *("opened from a record", "record made", "record of a sliced chunk", "slot saved", "slot saved alone"),
    *("parts from another prompt", "preempted while decoding", "layers of a chunk", "step failed", "row failed"),
    *("some of the drafts accepted", "no token of a row with drafts", "device lost", "flush"),
]

OF_TRACES = [
    *("simulated", "not simulated"),
    *(f"{what} the {tier}" for tier in Tier for what in ("stored on", "removed from")),
    *("several pages at once", "cleared", "cleared, and something left"),
]
"""What watched lives of any kind have to meet."""


def live(
    make: Callable[[int], Scenario], seeds: Sequence[int], *, traces: Path | None = None, watched: range
) -> Counter[str]:
    """Run lives to their ends. Returns how often each event was met.

    Args:
        traces: where those that are watched are recorded; None: nowhere.
        watched: seeds of those that are.
    """
    met = Counter[str]()
    for seed in seeds:
        scenario = make(seed)
        try:
            if seed in watched:
                watch(scenario, met, None if traces is None else traces / "life")
            else:
                run(scenario, met=met)
        except BaseException as error:
            error.add_note(f"{make.__name__}({seed})")
            raise
    return met


def watch(scenario: Scenario, met: Counter[str], path: Path | None) -> None:
    """Run a life beside a mirror of its prefix tree, and check its trace."""
    mirror = PageMirror(scenario.world.page_size, met)
    if path is None:
        run(scenario, met=met, mirror=mirror)
        return
    journal = trace_file(path, scenario.world)
    run(scenario, journal, met, mirror)
    journal.close()
    check_trace(path, scenario.world, met)


def never(met: Counter[str], events: Sequence[str]) -> list[str]:
    """Return the events that were never met."""
    return [event for event in events if not met[event]]


@lives(130, 1000, 153, 350)
def test_ordinary_lives(seeds: Sequence[int], tmp_path: Path) -> None:
    """Arrivals, aborts of every status, and faults, under every setting that `config` lets through."""
    met = live(random_scenario, seeds, traces=tmp_path, watched=range(0, 1000, 5))
    unmet = (Bound.PREFILL_FIRST, Bound.TIER_PAGES, Bound.OFFLOAD_BUDGET, Bound.DISK_READS)
    bounds = [f"bound by {bound}" for bound in Bound if bound not in unmet]
    assert never(met, [*OF_ALL, *OF_TRACES, *bounds, "refused: the queue is full"]) == []


@lives(70, 300, 155, 159)
def test_prompts_that_are_sent_again_to_a_tiny_device(seeds: Sequence[int], tmp_path: Path) -> None:
    """A load that its request leaves, a page that is brought to the wrong place or not at all, and followers of a load:
    what is cached lies on a tier and has to come back."""
    met = live(random_reload_scenario, seeds, traces=tmp_path, watched=range(0, 300, 7))
    assert never(met, [*OF_RELOADS, *OF_TRACES]) == []


@lives(70, 120, 87, 89)
def test_offloaded_beside_ordinary_requests(seeds: Sequence[int], tmp_path: Path) -> None:
    """Aborts, preemptions, lost devices, reads and stores that fail: a stale page, a page on the device that is
    overwritten too early, a page that is looked at before it was stored or a work item that is skipped changes what
    comes out, or breaks a law."""
    met = live(random_offload_scenario, seeds, traces=tmp_path, watched=range(2, 120, 5))
    assert never(met, [*OF_LONG_CONTEXTS, *OF_TRACES, "slices of two chunks in a step"]) == []


@lives(80, 400, 236, 239)
def test_chunks_that_are_divided_among_steps(seeds: Sequence[int], tmp_path: Path) -> None:
    """Aborts, preemptions and faults between two layers of a chunk, and others beside it: a layer that is skipped or
    computed twice, a page that is published before the last layer, one that is given away while a layer of its chunk is
    in flight changes what comes out, or breaks a law."""
    met = live(random_sliced_scenario, seeds, traces=tmp_path, watched=range(0, 400, 9))
    assert never(met, [*OF_LAYERS, *OF_TRACES]) == []


@lives(150, 500, 334)
def test_rows_with_drafts(seeds: Sequence[int]) -> None:
    """Drafts that are wrong, or half right, in every kind of life: a token of one that was rejected, its stale KV in a
    page that others find, or a row behind one whose end is not known changes what comes out, or breaks a law."""
    assert never(live(random_draft_scenario, seeds, watched=range(0, 500, 19)), OF_DRAFTS) == []


@lives(70, 300)
def test_models_that_fill_in_blocks(seeds: Sequence[int], tmp_path: Path) -> None:
    """A block whose state is another request's or an earlier one's, a page of it that was published before it was
    whole, a prompt that was cut inside a block: what a page holds stands for the whole of its block."""
    assert never(live(random_block_scenario, seeds, traces=tmp_path, watched=range(0, 300, 19)), OF_BLOCKS) == []


@lives(100, 1000)
def test_models_with_recurrent_states(seeds: Sequence[int], tmp_path: Path) -> None:
    """A slot that keeps the state of an earlier request, a state that moves over a token which is computed again, a
    record of other tokens or of a step that has failed: a row whose state is not that of its tokens gives others."""
    met = live(random_state_scenario, seeds, traces=tmp_path, watched=range(0, 1000, 20))
    assert never(met, OF_STATES) == []


@lives(50, 200)
def test_rows_with_drafts_by_ngrams(seeds: Sequence[int], tmp_path: Path) -> None:
    """The same with what is guessed by n-grams: an index that runs ahead of its request, or drafts that are chosen for
    a row that has none. In a replay they are guessed again."""
    met = live(random_guess_scenario, seeds, traces=tmp_path, watched=range(0, 200, 7))
    assert never(met, ["simulated", *(f"{some} of the drafts accepted" for some in ("all", "some", "none"))]) == []


@lives(110, 500)
def test_models_with_windows(seeds: Sequence[int], tmp_path: Path) -> None:
    """A page that is given up while a query may still see it, a prefix that is gone on from although the window before
    it has a hole, a page of a node that is written again: the window of a chunk is not what the other layers have."""
    assert never(live(random_window_scenario, seeds, traces=tmp_path, watched=range(0, 500, 12)), OF_WINDOWS) == []
