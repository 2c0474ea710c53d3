"""Time single steps on this CPU: decodes by batch and context, chunks by size and position, and both together.

    python benchmarks/cpu_steps.py --checkpoint build/checkpoints/qwen3-0.6b --json benchmarks/results/cpu_steps.json
    python benchmarks/cpu_steps.py --checkpoint build/checkpoints/qwen3-0.6b --steps decode:1,decode:8 --threads 1 2

The runner runs alone in this process, without scheduler and HTTP. Each number is the median of the steps that fit into
about a second, at least three. `--neighbour` keeps the last processor busy meanwhile. DECODE is
`decode:BATCH[@CACHED]`, a chunk is `chunk:SIZE[@CACHED]`, and `+` puts both into one step:
`decode:4@64+chunk:256@2000`. `verify:BATCHxDRAFTS[@CACHED]` are decodes with so many drafts each.

`--profile` splits the time of steps that are not captured by what the kernels do. A chunk of two tokens keeps a step of
decodes from being captured: `decode:30+chunk:2` has the rows of 32 decodes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.cpu.step_profile import StepProfile
from benchmarks.peers.neighbour import neighbour
from sluice.assembly.load import load
from sluice.assembly.loaded import LoadedModel
from sluice.attention.base import Attention, ForwardBatch, PagedKV
from sluice.bench.results import machine, versions
from sluice.config import ConfigError, EngineConfig
from sluice.runner.runner import Model
from sluice.types import BatchPlan, Chunk, NewSlot, SamplingParams, Submit

STEPS = (
    *(f"decode:{batch}" for batch in (1, 2, 4, 8, 16, 32, 64)),
    *(f"decode:{batch}@4000" for batch in (1, 4, 8)),
    *(f"chunk:{size}" for size in (16, 32, 64, 128, 256, 512, 1024, 2048)),
    *(f"chunk:{size}@4000" for size in (64, 256, 512)),
    *(f"decode:4+chunk:{size}@2000" for size in (64, 128, 256, 512)),
)
CACHED = 64
"""Default number of tokens before a decode's."""
MOST_SLOTS = 64
SECONDS = 1.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=1, seed=0)


@dataclass(frozen=True, slots=True)
class Part:
    """A number of equal rows of a step."""

    rows: int
    length: int
    cached: int
    drafts: int = 0
    """The last tokens of each row are drafts."""


def parse_step(text: str) -> list[Part]:
    """Read a step.

    Raises:
        ConfigError: the text has another form than those above.
    """
    return [_parse_part(text, part) for part in text.split("+")]


def _parse_part(text: str, part: str) -> Part:
    kind, _, numbers = part.partition(":")
    count, _, cached = numbers.partition("@")
    count, _, drafts = count.partition("x") if kind == "verify" else (count, "", "1")
    are_numbers = all(number.isdecimal() and int(number) > 0 for number in (count, drafts))
    if kind not in ("decode", "chunk", "verify") or not are_numbers or not (cached or "0").isdecimal():
        raise ConfigError(
            "a step must be decode:BATCH[@CACHED], chunk:SIZE[@CACHED] or verify:BATCHxDRAFTS[@CACHED], joined by +,"
            f" got {text!r}"
        )
    if kind == "chunk":
        return Part(1, int(count), int(cached or 0))
    if kind == "verify":
        return Part(int(count), int(drafts) + 1, int(cached or CACHED), int(drafts))
    return Part(int(count), 1, int(cached or CACHED))


class Filled:
    """A model that writes every page before its first step: reading a page that was never written reads no memory."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._is_filled = False

    def forward(self, batch: ForwardBatch, kv: Sequence[PagedKV], attention: Attention) -> torch.Tensor:
        if not self._is_filled:
            for layer in kv:
                layer.k.fill_(0.01)
                layer.v.fill_(0.01)
            self._is_filled = True
        return self._model.forward(batch, kv, attention)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)


class Steps:
    """Runs one kind of step again and again. Every row starts at the same position, so all steps are equal."""

    def __init__(self, loaded: LoadedModel, profile: StepProfile | None) -> None:
        self._loaded = loaded
        self._profile = profile
        self._runner = replace(loaded, model=Filled(loaded.model)).runner()
        # A step of two tokens: steps that only decode may be captured, and filling the pages must not be captured.
        first = BatchPlan(
            0, (NewSlot(0, Submit(0, (), GREEDY)),), (Chunk(0, 0, 0, 2, (1, 2), (0,), True),), num_decodes=0
        )
        self._runner.launch(first).wait()

    def seconds(self, parts: Sequence[Part]) -> list[float]:
        """Return the seconds of each step after a first one, which fills the slots."""
        page_size = self._loaded.shape.page_size
        runner = self._runner
        rows = [part for part in parts for _ in range(part.rows)]
        first_page, slots, chunks, again = 0, [], [], []
        for slot, part in enumerate(rows):
            pages = -(-(part.cached + part.length) // page_size)
            owned = tuple(range(first_page, first_page + pages))
            first_page += pages
            ids = tuple(range(1, part.length + 1))
            slots.append(NewSlot(slot, Submit(slot, (), GREEDY)))
            chunks.append(Chunk(slot, slot, part.cached, part.length, ids, owned, True, num_drafts=part.drafts))
            again.append(chunks[-1]._replace(new_pages=()))
        if first_page > self._loaded.shape.num_pages:
            raise ConfigError(
                f"a step needs {first_page} pages, --max-total-tokens gives {self._loaded.shape.num_pages}"
            )
        decodes = sum(part.length == 1 for part in rows)
        runner.launch(BatchPlan(0, tuple(slots), tuple(chunks), num_decodes=decodes)).wait()
        found: list[float] = []
        while len(found) < 3 or sum(found) < SECONDS:
            plan = BatchPlan(len(found) + 1, (), tuple(again), num_decodes=decodes)
            start = time.perf_counter()
            with nullcontext() if self._profile is None else self._profile.step():
                runner.launch(plan).wait()
            found.append(time.perf_counter() - start)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        steps = {text: parse_step(text) for text in args.steps.split(",")}
        if args.json is not None and not args.json.parent.is_dir():
            raise ConfigError(f"--json must be in a folder that exists, got {args.json}")
        found = [_measure(args, steps, threads, page_size) for threads in args.threads for page_size in args.page_size]
    except ConfigError as error:
        print(f"cpu_steps: error: {error}", file=sys.stderr)
        return 2
    if args.json is not None:
        record = {"benchmark": "cpu_steps", "machine": machine(), "versions": versions(), "runs": found}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def _measure(args: argparse.Namespace, steps: dict[str, list[Part]], threads: int, page_size: int) -> dict[str, Any]:
    # Without a target no chunk is divided by layers, which only a whole model does.
    options = {"model": str(args.checkpoint), "threads": threads, "page_size": page_size, "itl_target": "off"}
    if args.quantization is not None:
        options["quantization"] = args.quantization
    sizes = {"max_total_tokens": args.max_total_tokens, "max_running_requests": MOST_SLOTS + 1}
    loaded = load(EngineConfig.from_options(options | sizes), progress=False)
    profile = None
    if args.profile:
        if loaded.kernels is None:
            raise ConfigError("--profile needs the compiled kernels")
        profile = StepProfile(loaded.kernels, loaded.spec.vocab_size)
    runs = Steps(loaded, profile)
    print(f"threads {threads}, page size {page_size}{', one processor taken' if args.neighbour else ''}", flush=True)
    medians, parts_of = {}, {}
    with neighbour(threads - 1 if args.neighbour else None):
        for text, parts in steps.items():
            seconds = runs.seconds(parts)
            medians[text] = statistics.median(seconds)
            tokens = sum(part.rows * part.length for part in parts)
            median, best, worst = (1e3 * pick(seconds) for pick in (statistics.median, min, max))
            rate = tokens / medians[text]
            print(f"{text:>28} {median:8.2f} ms  ({best:.2f} to {worst:.2f}) {rate:8.0f} tokens/s", flush=True)
            if profile is not None:
                parts_of[text] = profile.take()
                print(" " * 28, *(f"{name} {1e3 * spent:.2f}" for name, spent in parts_of[text].items()), flush=True)
    run = {"threads": threads, "page_size": page_size, "neighbour": args.neighbour, "median_seconds": medians}
    return run | {"quantization": args.quantization, "mean_seconds_of_parts": parts_of}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians")
    parser.add_argument(
        "--steps", default=",".join(STEPS), metavar="LIST", help="steps to time (default: the curves of docs/cpu.md)"
    )
    parser.add_argument("--quantization", metavar="METHOD", help="as the server's (default: as the checkpoint says)")
    parser.add_argument("--profile", action="store_true", help="split the time of steps by what the kernels do")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="threads of the engine (default: 2)")
    parser.add_argument("--page-size", type=int, nargs="+", default=[32], help="tokens of a page (default: 32)")
    parser.add_argument("--max-total-tokens", type=int, default=36_864, help="KV pool (default: 36864)")
    parser.add_argument("--neighbour", action="store_true", help="with a process that keeps one processor busy")
    return parser


if __name__ == "__main__":
    sys.exit(main())
