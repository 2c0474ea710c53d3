"""What a very long prompt costs the engine between two steps as it arrives and as it ends: every stream stands still.

    $ .venv/bin/python benchmarks/arrival.py --tokens 1M

A prompt goes over the wire, is queued, is admitted as an offloaded request and is aborted: once with nothing cached,
once with all of it on the tier, and once with a tier full of others, which are evicted for it. Its pages are found,
reserved and given back over several turns. Times are of the processor, medians of several runs; nothing is computed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from sluice.kv.manager import KVManager
from sluice.process.engine_process import freeze_gc
from sluice.process.wire import SharedFields, decode, encode
from sluice.scheduler.scheduler import Scheduler
from sluice.types import BatchPlan, OffloadLimits, SamplingParams, SchedulerLimits, Submit, Tier, TierLimits

POOL_PAGES = 1024
CHUNK_PAGES = 32


def made(tokens: int, page_size: int) -> Scheduler:
    """Return a scheduler of a small device, and a disk for such a prompt and a little more."""
    limits = SchedulerLimits("mixed", CHUNK_PAGES * page_size, 2 * CHUNK_PAGES * page_size, 16)
    disk = TierLimits(disk_pages=tokens // page_size + 64, load_back_pages=2)
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
    while lease.is_opening:
        kv.offload.begin_step()
        kv.offload.open_further(lease, tokens, 0)
    lease.stored = lease.sent = len(prompt) // page_size
    lease.share_stored(tokens)
    lease.release(tokens, len(prompt))
    kv.offload.finish_closing()


def arrival(scheduler: Scheduler, prompt: tuple[int, ...]) -> dict[str, float]:
    """Let a prompt arrive. Return the milliseconds of each part."""
    here, there = SharedFields(), SharedFields()
    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        found: list[Any] = []
        times[name] = milliseconds(lambda: found.append(work()))
        return found[0]

    submit = Submit(1, prompt, SamplingParams(max_tokens=16, seed=0))
    data = timed("encode (server)", lambda: encode(here.omit(submit)))
    received = timed("decode", lambda: there.restore(decode(data)))  # type: ignore[arg-type]
    timed("queue", lambda: scheduler.add(received))
    pool = scheduler.state.kv.offload
    scheduler.state.num_in_flight += 1  # a step of streams: they wait for each turn
    turns: list[float] = []
    plans: list[BatchPlan | None] = []
    while not scheduler.state.offloaded or pool.opening is not None:
        turns.append(milliseconds(lambda: plans.append(scheduler.schedule())))
    times["longest turn of admission"] = max(turns)
    times["turns of admission"] = float(len(turns))
    scheduler.abort(1)
    turns = [milliseconds(partial(scheduler.fail, plan, "")) for plan in plans if plan is not None]
    while pool.closing:
        turns.append(milliseconds(scheduler.schedule))
    times["longest turn of the end"] = max(turns)
    times["turns of the end"] = float(len(turns))
    times["receive and queue"] = times["decode"] + times["queue"]
    return times


def milliseconds(work: Callable[[], Any]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1M", help="of the prompt; K and M are accepted")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    factor = {"K": 1 << 10, "M": 1 << 20}.get(asked.tokens[-1:].upper(), 1)
    tokens = int(asked.tokens.rstrip("kKmM")) * factor
    draw = random.Random(0)
    prompt, other = (tuple(draw.randrange(150_000) for _ in range(tokens)) for _ in range(2))
    print(f"{tokens} tokens, pages of {asked.page_size}, medians of {asked.runs} runs, ms")
    for name, on_tier in (("nothing cached", None), ("all of it cached", prompt), ("a tier full of others", other)):
        runs = []
        for _ in range(asked.runs):
            scheduler = made(tokens, asked.page_size)
            if on_tier is not None:
                cached(scheduler, on_tier, asked.page_size)
            freeze_gc()  # as a server's engine does
            runs.append(arrival(scheduler, prompt))
        print(f"{name}:")
        for part in runs[0]:
            print(f"  {part:<28} {median(run[part] for run in runs):9.1f}")


if __name__ == "__main__":
    main()
