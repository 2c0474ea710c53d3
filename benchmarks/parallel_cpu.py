"""What it costs on a CPU to share a model between ranks: tp 2 with one thread each against one process of two threads.

    python benchmarks/parallel_cpu.py                                    # the bundled model
    python benchmarks/parallel_cpu.py MODEL --dtype bfloat16 --turns 6

Both engines compute the same prompts, and decode the same number of tokens, in turns (A B A B). The result has the
medians and their ratios, and the machine's memory bandwidth and FLOP/s. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cpu.machine import Probe
from benchmarks.written import show
from sluice import AsyncLLM, SamplingParams

SHORT = 16
"""Tokens of the prompts of streams that are decoded together."""


class Times(NamedTuple):
    """One turn of one engine, in seconds."""

    prefill: float
    """Until the first token of a prompt of `--prompt-len` tokens."""
    decode: float
    """For each further token of one stream."""
    batch: float
    """For each further step of `--streams` streams."""


async def turn(llm: AsyncLLM, prompt_len: int, streams: int, tokens: int, number: int) -> Times:
    """Time one turn. Prompts differ between turns, so that none is cached.

    Args:
        number: of the turn.
    """
    began = time.perf_counter()
    stream = llm.generate(prompt_of(prompt_len, number), greedy(tokens))
    await anext(stream)
    first = time.perf_counter()
    async for _ in stream:
        pass
    ended = time.perf_counter()

    async def answer(one: int) -> tuple[float, float]:
        prompt = prompt_of(SHORT, number * streams + one)
        stamps = [time.perf_counter() async for _ in llm.generate(prompt, greedy(tokens))]
        return stamps[0], stamps[-1]

    stamps = await asyncio.gather(*map(answer, range(streams)))
    last_first, last = max(first for first, _ in stamps), max(end for _, end in stamps)
    return Times(first - began, (ended - first) / (tokens - 1), (last - last_first) / (tokens - 1))


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def prompt_of(length: int, number: int) -> list[int]:
    return [1 + (number * 7919 + position * 31) % 500 for position in range(length)]


async def compare(model: str, engines: Mapping[str, Mapping[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of each engine, and their ratios to the first one's."""
    found: dict[str, list[Times]] = {name: [] for name in engines}
    async with AsyncExitStack() as stack:
        running = {
            name: await stack.enter_async_context(AsyncLLM(model, dtype=options.dtype, max_total_tokens=8192, **extra))
            for name, extra in engines.items()
        }
        for number in range(options.turns + 1):
            for name, llm in running.items():
                times = await turn(llm, options.prompt_len, options.streams, options.tokens, number)
                if number:  # the first turn warms up
                    found[name].append(times)
    medians = {name: medians_of(times) for name, times in found.items()}
    base = medians[next(iter(engines))]
    return {
        "medians in ms": {
            name: {key: round(1000 * value, 2) for key, value in times._asdict().items()}
            for name, times in medians.items()
        },
        "ratios": {
            name: {key: round(value / getattr(base, key), 2) for key, value in times._asdict().items()}
            for name, times in medians.items()
        },
    }


def medians_of(times: Sequence[Times]) -> Times:
    return Times(*(median(column) for column in zip(*times, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--prompt-len", type=int, default=512)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stages", action="store_true", help="measure pp 2, too")
    parser.add_argument("--json", type=Path, dest="out", help="file for the result")
    options = parser.parse_args()
    engines: dict[str, dict[str, Any]] = {
        "one process, 2 threads": {"threads": 2},
        "tp 2, 1 thread each": {"tp_size": 2, "threads": 1},
    }
    if options.stages:
        engines["pp 2, 1 thread each"] = {"pp_size": 2, "threads": 1}
    rates = Probe(threads=2).rates()
    result = asyncio.run(compare(options.model, engines, options))
    measured = {"GB/s": rates.read_bytes_per_second / 1e9, "bfloat16 GFLOP/s": rates.bfloat16_flop_per_second / 1e9}
    rounded = {name: round(value, 1) for name, value in measured.items()}
    show({"rates": rounded, "load": os.getloadavg(), **result}, options.out)


if __name__ == "__main__":
    main()
