"""Copies and restored pages are inputs: a run with tiers is planned again from its trace alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import Submit
from sluice.testing import ShadowRunner, resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.replay import Replayed, ReplayError, replay
from sluice.tracing.run import read_run
from sluice.tracing.summary import report, summarize
from sluice.types import StoredPage
from tier_worlds import TierBench, world_of
from worlds import Arrival

WORLD = world_of(num_pages=8)
LONG = (1, *[0] * 24)
SALT = "a salt that must not be found"


@pytest.fixture(scope="module")
def stored() -> tuple[TierBench, tuple[StoredPage, ...]]:
    """A disk that holds a prompt, and its index."""
    bench = TierBench(WORLD)
    bench.ask(0, LONG, extra_key=SALT)
    return bench, bench.disk.tiers.crash()


def recorded(path: Path, stored: tuple[TierBench, tuple[StoredPage, ...]], *, token_ids: bool = True) -> str:
    engine = recorded_engine(WORLD, trace_file(path, WORLD, token_ids=token_ids))
    shadow = ShadowRunner(page_size=4, vocab_size=2)
    shadow.tiers.adopt(stored[0].disk.tiers)
    engine.runner = shadow
    assert engine.scheduler.restore(stored[1]) == 6
    arrivals = [
        Arrival(0, Submit(1, LONG, resolved(2), extra_key=SALT)),
        Arrival(5, Submit(2, LONG[::-1], resolved(3))),
    ]
    link = play(engine, arrivals)
    assert link.end(1).num_disk_tokens == 24
    return path.read_text()


def replayed(path: Path) -> Replayed:
    with TraceReader(path) as trace:
        return replay(trace)


def test_a_restored_cache_and_its_copies_replay(
    tmp_path: Path, stored: tuple[TierBench, tuple[StoredPage, ...]]
) -> None:
    path = tmp_path / "trace"
    text = recorded(path, stored)
    found = replayed(path)
    assert (found.divergence, found.unended) == (None, 0)
    assert '"copies":[{' in text or '"copies":[[' in text
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        if line["kind"] == "restored":
            del line["pages"][0]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    different = replayed(path).divergence
    assert different is not None
    assert (different.where, different.field) == ("the cache, restored from a disk", "pages")


def test_neither_salts_nor_digests_are_written(
    tmp_path: Path, stored: tuple[TierBench, tuple[StoredPage, ...]]
) -> None:
    """A digest is a function of the salt: with guessed tokens it could be found."""
    text = recorded(tmp_path / "trace", stored)
    assert SALT not in text
    kept = [json.loads(line) for line in text.splitlines() if '"restored"' in line]
    digests = {page[1][0] for line in kept for page in line["pages"]}
    assert len(digests) == 6
    assert digests.isdisjoint(base64.b64encode(page.key.digest).decode() for page in stored[1])


def test_without_token_ids_there_are_no_pages(tmp_path: Path, stored: tuple[TierBench, tuple[StoredPage, ...]]) -> None:
    path = tmp_path / "trace"
    text = recorded(path, stored, token_ids=False)
    (line,) = [json.loads(line) for line in text.splitlines() if '"restored"' in line]
    assert (line["num_pages"], line["taken"], "pages" in line) == (6, 6, False)
    with pytest.raises(ReplayError, match="without token ids"):
        replayed(path)


def test_the_summary_counts_copies(tmp_path: Path, stored: tuple[TierBench, tuple[StoredPage, ...]]) -> None:
    """Steps that hold copies alone are no prefill."""
    path = tmp_path / "trace"
    recorded(path, stored)
    with TraceReader(path) as trace:
        summary = summarize(trace.header, read_run(trace), 100.0)
    assert (summary.loaded_pages, summary.failed_copies) == (6, 0)
    assert summary.stored_pages > 0
    assert summary.other_steps >= 1
    shown = report(summary, table=False)
    assert f"tiers     {summary.stored_pages} pages stored, 6 loaded, 0 of these copies failed" in shown
    assert f"{summary.other_steps} of copies alone" in shown
