"""Random lives of whole engines, every law checked after every call, and a census of what they met.

A law protects from a bug only if some life comes to where the bug is. So each family of lives names the statuses and
events that it exists for, and fails if one of them was never met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from scenarios import (
    Scenario,
    random_block_scenario,
    random_draft_scenario,
    random_guess_scenario,
    random_offload_scenario,
    random_reload_scenario,
    random_scenario,
    run,
)
from sluice.scheduler.request import Status
from sluice.types import Bound, FinishReason

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


def live(make: Callable[[int], Scenario], seeds: Iterable[int]) -> Counter[str]:
    """Run lives to their ends. Returns how often each event was met."""
    met = Counter[str]()
    for seed in seeds:
        try:
            run(make(seed), met=met)
        except BaseException as error:
            error.add_note(f"{make.__name__}({seed})")
            raise
    return met


def never(met: Counter[str], events: Sequence[str]) -> list[str]:
    """Return the events that were never met."""
    return [event for event in events if not met[event]]


def test_ordinary_lives() -> None:
    """Arrivals, aborts of every status, and faults, under every setting that `config` lets through."""
    met = live(random_scenario, range(1000))
    unmet = (Bound.PREFILL_FIRST, Bound.TIER_PAGES, Bound.OFFLOAD_BUDGET, Bound.DISK_READS)
    bounds = [f"bound by {bound}" for bound in Bound if bound not in unmet]
    assert never(met, [*OF_ALL, *bounds, "refused: the queue is full"]) == []


def test_prompts_that_are_sent_again_to_a_tiny_device() -> None:
    """A load that its request leaves, a page that is brought to the wrong place or not at all, and followers of a load:
    what is cached lies on a tier and has to come back."""
    assert never(live(random_reload_scenario, range(300)), OF_RELOADS) == []


def test_offloaded_beside_ordinary_requests() -> None:
    """Aborts, preemptions, lost devices, reads and stores that fail: a stale page, a page on the device that is
    overwritten too early, a page that is looked at before it was stored or a work item that is skipped changes what
    comes out, or breaks a law."""
    assert never(live(random_offload_scenario, range(120)), OF_LONG_CONTEXTS) == []


def test_rows_with_drafts() -> None:
    """Drafts that are wrong, or half right, in every kind of life: a token of one that was rejected, its stale KV in a
    page that others find, or a row behind one whose end is not known changes what comes out, or breaks a law."""
    assert never(live(random_draft_scenario, range(500)), OF_DRAFTS) == []


def test_models_that_fill_in_blocks() -> None:
    """A block whose state is another request's or an earlier one's, a page of it that was published before it was
    whole, a prompt that was cut inside a block: what a page holds stands for the whole of its block."""
    assert never(live(random_block_scenario, range(300)), OF_BLOCKS) == []


def test_rows_with_drafts_by_ngrams() -> None:
    """The same with what is guessed by n-grams: an index that runs ahead of its request, or drafts that are chosen for
    a row that has none."""
    met = live(random_guess_scenario, range(200))
    assert never(met, [f"{some} of the drafts accepted" for some in ("all", "some", "none")]) == []
