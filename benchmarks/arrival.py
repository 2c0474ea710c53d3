"""What the arrival of a very long prompt costs the engine between two steps, in which every stream stands still.

    $ .venv/bin/python benchmarks/arrival.py --tokens 1M

A prompt goes over the wire, is queued, and is admitted as an offloaded request, once with nothing cached and once with
all of it on the tier. Times are of one thread, medians of several runs; nothing is computed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from sluice.kv.manager import KVManager
from sluice.process.wire import SharedFields, decode, encode
from sluice.scheduler.scheduler import Scheduler
from sluice.types import OffloadLimits, SamplingParams, SchedulerLimits, Submit, Tier, TierLimits

POOL_PAGES = 1024
CHUNK_PAGES = 32


def made(tokens: int, page_size: int) -> Scheduler:
    """Return a scheduler of a small device, and a disk for two such prompts."""
    limits = SchedulerLimits("mixed", CHUNK_PAGES * page_size, 2 * CHUNK_PAGES * page_size, 16)
    disk = TierLimits(disk_pages=2 * (tokens // page_size) + 64, load_back_pages=2)
    offload = OffloadLimits(
        above=POOL_PAGES * page_size,
        tier=Tier.DISK,
        page_bytes=1,
        chunk_tokens=CHUNK_PAGES * page_size,
        window_pages=2 * CHUNK_PAGES,
        num_layers=2,
        block_pages=64,
        group_blocks=2,
        reports_loads=True,
    )
    kv = KVManager(num_pages=POOL_PAGES, page_size=page_size, tiers=disk, offload=offload)
    return Scheduler(limits, kv)


def cached(scheduler: Scheduler, prompt: tuple[int, ...], page_size: int) -> None:
    """Put a prompt on the scheduler's disk."""
    kv = scheduler.state.kv
    tokens = Submit(0, prompt, SamplingParams(max_tokens=1, seed=0)).tokens()
    lease = kv.offload.open(tokens, 0, len(prompt), "")
    assert lease is not None
    lease.stored = lease.sent = len(prompt) // page_size
    lease.share_stored(tokens)
    lease.release(tokens, len(prompt))


def arrival(scheduler: Scheduler, prompt: tuple[int, ...]) -> dict[str, float]:
    """Let a prompt arrive. Return the milliseconds of each part."""
    here, there = SharedFields(), SharedFields()
    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        times[name] = (time.perf_counter() - began) * 1000
        return found

    submit = Submit(1, prompt, SamplingParams(max_tokens=16, seed=0))
    data = timed("encode (server)", lambda: encode(here.omit(submit)))
    received = timed("decode", lambda: there.restore(decode(data)))  # type: ignore[arg-type]
    timed("queue", lambda: scheduler.add(received))
    turns = []
    while not scheduler.state.offloaded:
        began = time.perf_counter()
        scheduler.schedule()
        turns.append((time.perf_counter() - began) * 1000)
    times["longest turn of admission"] = max(turns)
    times["turns of admission"] = float(len(turns))
    times["receive and queue"] = times["decode"] + times["queue"]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1M", help="of the prompt; K and M are accepted")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    factor = {"K": 1 << 10, "M": 1 << 20}.get(asked.tokens[-1:].upper(), 1)
    tokens = int(asked.tokens.rstrip("kKmM")) * factor
    draw = random.Random(0)
    prompt = tuple(draw.randrange(150_000) for _ in range(tokens))
    print(f"{tokens} tokens, pages of {asked.page_size}, medians of {asked.runs} runs, ms")
    for name, is_cached in (("nothing cached", False), ("all of it cached", True)):
        runs = []
        for _ in range(asked.runs):
            scheduler = made(tokens, asked.page_size)
            if is_cached:
                cached(scheduler, prompt, asked.page_size)
            runs.append(arrival(scheduler, prompt))
        print(f"{name}:")
        for part in runs[0]:
            print(f"  {part:<28} {median(run[part] for run in runs):9.1f}")


if __name__ == "__main__":
    main()
