"""Measure the page at `/`: what a subscriber of /v1/trace costs the server, and how long the page's frames take.

    python benchmarks/page.py --json page.json

The real server runs in processes of its own, over the ShadowRunner, with steps of a fixed length, and gives tokens to
`--streams` streams. Its processor time for a token (user and system, of the HTTP server and the engine) is measured in
short windows of `--seconds`, in turns without and with a subscriber that reads and drops everything. A token of the
ShadowRunner costs more the longer its context is, so a block of windows is A B B A, and its ratio that of the sums; new
streams begin after `--blocks` blocks. What else the machine does moves single windows by more than a subscriber costs,
and does not know which kind a window is. So there are many blocks, and the result is the median of their ratios with a
95% interval that assumes nothing of their distribution.

Then chromium, without a window or a GPU, shows the page beside these streams: times between its frames.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.front import Stream, run_streams, streams_of
from benchmarks.shadow_server import MAX_MODEL_LEN, children_of, server
from benchmarks.written import show

FRAMES = """(milliseconds) => new Promise((resolve) => {
  const times = [], until = performance.now() + milliseconds;
  const frame = (now) => {
    times.push(now);
    if (now < until) requestAnimationFrame(frame);
    else resolve(times.slice(1).map((time, index) => time - times[index]));
  };
  requestAnimationFrame(frame);
})"""
CHROMIUM = "/usr/bin/chromium"
WARM_SECONDS = 1.0
"""For new streams."""
SETTLE_SECONDS = 0.15
"""Between the beginning of a subscription and that of its window."""
TURNS = (False, True, True, False)
"""Whether there is a subscriber, in the windows of a block."""
CONFIDENCE = 0.95


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time of some processes, all threads, in nanoseconds' resolution."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


async def subscribe(port: int) -> int:
    """Read the trace until cancelled. Returns the bytes that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/trace HTTP/1.1\r\nHost: localhost\r\n\r\n")
    count = 0
    try:
        while data := await reader.read(1 << 16):
            count += len(data)
    except asyncio.CancelledError:
        pass
    finally:
        writer.close()
    return count


async def window(
    pids: list[int], port: int, streams: Sequence[Stream], seconds: float, *, subscribed: bool
) -> tuple[float, int]:
    """Return the processor time of a window for each token that came, in microseconds, and the bytes of the trace."""

    def tokens() -> int:
        return sum(len(stream.arrivals) for stream in streams)

    reading = asyncio.create_task(subscribe(port)) if subscribed else None
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, came = processor_seconds(pids), tokens()
    await asyncio.sleep(seconds)
    each = 1e6 * (processor_seconds(pids) - cpu) / (tokens() - came)
    if reading is None:
        return each, 0
    reading.cancel()
    return each, await reading


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an interval that holds the median of what was drawn from with a probability of 95% or more.

    They are two of the values: how many lie below the median is binomial, whatever their distribution (order
    statistics; H. A. David, Order Statistics, 1981). With fewer than six values they are the least and the largest,
    and the probability is lower.
    """
    ordered, count = sorted(values), len(values)
    rank, below = 0, 0.5**count
    while below <= (1 - CONFIDENCE) / 2:
        rank += 1
        below += math.comb(count, rank) * 0.5**count
    at = max(rank - 1, 0)
    return ordered[at], ordered[count - 1 - at]


async def costs(port: int, pids: list[int], args: argparse.Namespace) -> dict[str, Any]:
    blocks: list[list[float]] = []
    size = 0
    for _ in range(args.rounds):
        streams = streams_of(args.streams)
        running = asyncio.create_task(run_streams(port, streams, MAX_MODEL_LEN - 64))
        await asyncio.sleep(WARM_SECONDS)
        for _ in range(args.blocks):
            block = [await window(pids, port, streams, args.seconds, subscribed=turn) for turn in TURNS]
            blocks.append([each for each, _ in block])
            size = max(size, *(count for _, count in block))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(WARM_SECONDS)
    ratios = [(first + second) / (before + after) for before, first, second, after in blocks]
    return {
        "cpu_us_per_token_without": statistics.median(each for block in blocks for each in (block[0], block[3])),
        "cpu_us_per_token_with": statistics.median(each for block in blocks for each in (block[1], block[2])),
        "blocks": len(ratios),
        "ratio_median": statistics.median(ratios),
        "ratio_95": interval_of_median(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "trace_bytes_per_s": size / (args.seconds + SETTLE_SECONDS),
    }


async def frames(port: int, args: argparse.Namespace) -> dict[str, float]:
    from playwright.async_api import async_playwright

    streams = asyncio.create_task(run_streams(port, streams_of(args.streams), MAX_MODEL_LEN - 64))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(viewport={"width": 1440, "height": 1000})
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.get_by_text("Requests as a table").click()
        await asyncio.sleep(args.frame_warm)
        between = sorted(await page.evaluate(FRAMES, args.frame_seconds * 1000))
        running = int(await page.locator("#fact-running").inner_text())
        written = float(await page.locator("#fact-written").inner_text())
        await browser.close()
    streams.cancel()
    await asyncio.gather(streams, return_exceptions=True)
    return {
        "running_on_the_page": running,
        "tokens_per_s_on_the_page": written,
        "frame_ms_p50": between[len(between) // 2],
        "frame_ms_p95": between[len(between) * 95 // 100],
        "frame_ms_max": between[-1],
        "frames": len(between),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=1000 / 30, help="length of a step: each stream gets a token")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    parser.add_argument("--blocks", type=int, default=5, help="of four windows, beside the same streams")
    parser.add_argument("--rounds", type=int, default=12, help="of as many blocks, beside new streams each")
    parser.add_argument("--no-frames", action="store_true", help="measure the cost alone")
    parser.add_argument("--frame-warm", type=float, default=22.0, help="seconds until the timeline is full")
    parser.add_argument("--frame-seconds", type=float, default=15.0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    with server(args.step_ms, max_running_requests=args.streams) as (port, pid):
        pids = [pid, *children_of(pid)]
        figures: dict[str, Any] = {"streams": args.streams, "step_ms": args.step_ms, "load": os.getloadavg()[0]}
        figures |= asyncio.run(costs(port, pids, args))
        if not args.no_frames:
            figures |= asyncio.run(frames(port, args))
    show(figures, args.json)


if __name__ == "__main__":
    main()
