"""Offer a server several times its capacity: how much it still serves, and how it refuses the rest.

    python tests/stress/overload.py --seconds 60 --json overload.json

The real server runs in processes of its own, over the ShadowRunner with steps of a fixed length. Its capacity is
measured first, with as many clients as it runs at once, each sending its next request when it has an answer. Then
requests come at random moments (a Poisson process), five times as many as it can serve; a few of them must start within
half a second. The exit status is 1 if goodput is more than
10% below capacity, memory grew by more than a tenth, a refusal was no 503 with a `Retry-After`, or a request hung.
Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[1:3])  # tests, and the repository

from benchmarks.shadow_server import children_of, resident_mb, server
from stress.written import show

RUNNING, QUEUED, STEP_MS = 16, 32, 10.0
PROMPT_TOKENS, OUTPUT_TOKENS = 96, 40
POOL_TOKENS = 4 * RUNNING * (PROMPT_TOKENS + OUTPUT_TOKENS)
"""Size of the KV pool, small enough to fill up soon: the ShadowRunner's KV is a dictionary, which grows until then."""
PATIENCE = 30.0
"""Seconds after which a request counts as hung."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request."""

    status: int
    """HTTP status; 0 without an answer."""
    seconds: float
    ended: float
    """Time of the end, by the clock of this process."""
    tokens: int = 0
    retry_after: int | None = None
    code: str | None = None


async def ask(port: int, number: int, **fields: Any) -> Outcome:
    """Send one request on a connection of its own."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE):
            status, headers, body = await exchange(port, number, fields)
    except (TimeoutError, OSError, ValueError):
        return Outcome(0, time.perf_counter() - start, time.perf_counter())
    end = time.perf_counter()
    content = json.loads(body)
    retry_after = int(headers["retry-after"]) if "retry-after" in headers else None
    if status == 200:
        return Outcome(status, end - start, end, content["usage"]["completion_tokens"])
    return Outcome(status, end - start, end, 0, retry_after, content["error"]["code"])


async def exchange(port: int, number: int, fields: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an HTTP exchange."""
    prompt = [number % 499 + 1, number // 499, *range(PROMPT_TOKENS - 2)]
    request = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, **fields}
    content = json.dumps(request).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}"
    writer.write(f"{head}\r\n\r\n".encode() + content)
    data = await reader.read()
    writer.close()
    top, _, body = data.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, body


async def capacity(port: int, seconds: float) -> float:
    """Measure the requests a second with every slot taken."""
    done = 0
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            outcome = await ask(port, number * 1000 + done)
            assert outcome.status == 200, outcome
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(RUNNING + 4)))
    return done / (time.perf_counter() - start)


async def overload(port: int, rate: float, seconds: float) -> list[Outcome]:
    """Send requests at random moments."""
    draw, tasks = random.Random(0), []
    start = due = time.perf_counter()
    while due < start + seconds:
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        hurried = {"max_queue_time": 0.5} if draw.random() < 0.1 else {}
        tasks.append(asyncio.create_task(ask(port, len(tasks) + 100_000, **hurried)))
    return list(await asyncio.gather(*tasks))


def goodput(outcomes: Sequence[Outcome], start: float, seconds: float) -> float:
    """Return the requests served a second, without the first tenth, in which the server fills up."""
    first, last = start + seconds / 10, start + seconds
    return sum(o.status == 200 and first <= o.ended < last for o in outcomes) / (last - first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the overload lasts")
    parser.add_argument("--times", type=float, default=5.0, help="offered load, as a multiple of the capacity")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    options = {"max_running_requests": RUNNING, "max_queued_requests": QUEUED, "max_total_tokens": POOL_TOKENS}
    with server(STEP_MS, **options) as (port, pid):
        able = asyncio.run(capacity(port, max(3.0, args.seconds / 6)))
        asyncio.run(overload(port, able * args.times, max(2.0, args.seconds / 10)))  # memory is measured under load
        processes = [pid, *children_of(pid)]
        before, start = [resident_mb(each) for each in processes], time.perf_counter()
        outcomes = asyncio.run(overload(port, able * args.times, args.seconds))
        after = [resident_mb(each) for each in processes]
        again = asyncio.run(ask(port, 1))
    refused = [outcome for outcome in outcomes if outcome.status != 200]
    figures = {
        "capacity_per_s": able,
        "offered_per_s": len(outcomes) / args.seconds,
        "goodput_per_s": goodput(outcomes, start, args.seconds),
        "refused": len(refused),
        "refusals": dict(Counter(f"{outcome.status} {outcome.code}" for outcome in refused)),
        "refused_without_retry_after": sum(o.status != 503 or o.retry_after is None for o in refused),
        "retry_after_s": sorted({outcome.retry_after for outcome in refused if outcome.retry_after is not None}),
        "slowest_answer_s": max(outcome.seconds for outcome in outcomes),
        "slowest_refusal_s": max((outcome.seconds for outcome in refused), default=0.0),
        "hung": sum(outcome.status == 0 for outcome in outcomes),
        "memory_mb_before": before,
        "memory_mb_after": after,
        "serves_afterwards": again.status == 200,
    }
    show(figures, args.json)
    good = (
        figures["goodput_per_s"] >= 0.9 * able
        and not figures["hung"]
        and not figures["refused_without_retry_after"]
        and all(late <= 1.1 * early for early, late in zip(before, after, strict=True))
        and again.status == 200
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
