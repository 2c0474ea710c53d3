"""Compare layouts of ranks on a machine with several GPUs: the tokens, and the times of prefill and decodes.

    python benchmarks/parallel_gpu.py MODEL --json parallel.json   # every layout that the devices allow
    python benchmarks/parallel_gpu.py --trial                      # the bundled model on a CPU over gloo: does it run?

Every round starts an engine for each layout, one after the other (A B A B), as each takes the memory of its devices.
The result has the medians, their ratios to one rank, and how much of the greedy answers is that of one rank: all of it
in `--dtype float32`, and most in bfloat16, where sums of parts are rounded in another way.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parallel_cpu import Times, greedy, medians_of, prompt_of, turn
from benchmarks.written import show
from sluice import AsyncLLM

LAYOUTS = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4)]
"""Sizes of tensor and pipeline parallel."""
COMPARED = 8
"""Prompts whose tokens are compared."""


class Run(NamedTuple):
    """One engine of one round."""

    texts: tuple[str, ...]
    """Greedy answers to the compared prompts."""
    times: Times


async def run(sizes: tuple[int, int], options: argparse.Namespace) -> Run:
    """Start an engine, warm it up, and measure it."""
    tensor, pipeline = sizes
    extra: dict[str, Any] = {"device": "cpu", "threads": 1, "max_total_tokens": 8192} if options.trial else {}
    async with AsyncLLM(options.model, dtype=options.dtype, tp_size=tensor, pp_size=pipeline, **extra) as llm:

        async def text(number: int) -> str:
            pieces = llm.generate(prompt_of(options.prompt_len, -1 - number), greedy(options.tokens))
            return "".join([piece.text async for piece in pieces])

        texts = tuple(await asyncio.gather(*map(text, range(COMPARED))))
        await turn(llm, options.prompt_len, options.streams, options.tokens, 0)
        return Run(texts, await turn(llm, options.prompt_len, options.streams, options.tokens, 1))


def equal_share(texts: Sequence[str], reference: Sequence[str]) -> float:
    """Return which share of the characters comes before the first one that differs, over all texts."""
    same = sum(
        next((at for at, (one, other) in enumerate(zip(text, whole, strict=False)) if one != other), len(whole))
        for text, whole in zip(texts, reference, strict=True)
    )
    return round(same / max(1, sum(map(len, reference))), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-len", type=int, default=2048)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--trial", action="store_true", help="small, on a CPU, with up to 4 ranks")
    parser.add_argument("--json", type=Path, dest="out", help="file for the result")
    options = parser.parse_args()
    devices = 4 if options.trial else torch.cuda.device_count()
    if options.trial:
        options.rounds, options.prompt_len, options.streams, options.tokens = 1, 64, 2, 16
    layouts = [sizes for sizes in LAYOUTS if sizes[0] * sizes[1] <= devices]
    if len(layouts) < 2:
        parser.error(f"layouts are compared on at least 2 devices, and this machine has {devices}; see --trial")
    runs: dict[str, list[Run]] = {}
    for _ in range(options.rounds):
        for sizes in layouts:
            runs.setdefault("tp {} pp {}".format(*sizes), []).append(asyncio.run(run(sizes, options)))
    show(figures(runs), options.out)


def figures(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return the medians of each layout in milliseconds, beside those of the first one."""
    base = next(iter(runs.values()))
    base_times = medians_of([each.times for each in base])
    result = {}
    for name, found in runs.items():
        times = medians_of([each.times for each in found])
        result[name] = {
            "ms": {key: round(1000 * value, 2) for key, value in times._asdict().items()},
            "ratios": {key: round(value / getattr(base_times, key), 2) for key, value in times._asdict().items()},
            "equal": min(equal_share(each.texts, base[0].texts) for each in found),
        }
    return {"layouts": result}


if __name__ == "__main__":
    main()
