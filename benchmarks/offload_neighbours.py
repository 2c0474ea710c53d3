"""Measure how a prompt longer than the device delays ordinary requests, while it is read and while it decodes.

    python benchmarks/offload_neighbours.py --long 128K --out build/neighbours --disk build/pages \\
        --option max_total_tokens=32768 --option chunked_prefill_size=512 --option offload_above=16384

One engine runs in this process, over a checkpoint that recalls exactly. Some requests decode all the time:

    alone      only they
    ordinary   beside prompts that fit the device, one after the other, so that every step has a full chunk
    prefill    beside the long prompt
    decode     beside the long prompt's answer

Times are those at which the engine sends tokens. The long prompt holds a needle, and its answer is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.exact_recall import SHAPES, needle_prompt, write_recall_checkpoint
from benchmarks.long_context.bandwidth import read_bandwidth
from benchmarks.long_context.link import TimedLink
from benchmarks.long_context.slow_disk import slow_disk
from benchmarks.needles import ROOM, disk_options, option_of, tokens_of
from sluice.assembly.engine import build_engine
from sluice.assembly.info import EngineInfo
from sluice.bench.results import IN_PROCESS_PACKAGES, machine, versions
from sluice.config import ConfigError, EngineConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Abort, Submit
from sluice.process.engine_process import freeze_gc
from sluice.runner.offload.loaders import LoadTotals
from sluice.runner.runner import TorchRunner
from sluice.types import SamplingParams

STREAM_TOKENS = 1000
"""Tokens of a decoding request. Then another one replaces it."""


@dataclass
class Phase:
    """A part of the run."""

    name: str
    start: float
    end: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a decoding request, both within the phase."""
    loads: LoadTotals = field(default_factory=LoadTotals)
    """Loads of the blocks that passed through the ring."""

    def as_dict(self) -> dict[str, float | int | str]:
        """Return the figures, in milliseconds; loads in bytes and seconds."""
        p50, p99 = (1000 * float(np.quantile(self.gaps, q)) for q in (0.5, 0.99))
        return {
            "phase": self.name,
            "seconds": self.end - self.start,
            "gaps": len(self.gaps),
            "itl_p50_ms": p50,
            "itl_p99_ms": p99,
            "itl_max_ms": 1000 * max(self.gaps),
            **({} if not self.loads.bytes else self._of_loads()),
        }

    def _of_loads(self) -> dict[str, float | int]:
        loads = self.loads
        return {
            "loaded_bytes": loads.bytes,
            "load_seconds": loads.seconds,
            "waited_seconds": loads.waited,
            "load_bytes_per_second": loads.bytes / loads.seconds,
            "share_hidden": max(0.0, 1 - loads.waited / loads.seconds),
        }


class Run:
    """An engine, its decoding requests, and the phases of the run."""

    def __init__(self, engine: Engine, link: TimedLink, streams: int, vocab_size: int, ordinary_tokens: int) -> None:
        assert isinstance(engine.runner, TorchRunner), f"{engine.runner} loads nothing"
        self._runner = engine.runner
        self._engine = engine
        self._link = link
        self._ids = count()
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._ordinary_tokens = ordinary_tokens
        self.phases: list[Phase] = []
        self._running = [self._submit(self._words(32), STREAM_TOKENS) for _ in range(streams)]
        self._streams = set(self._running)
        while not all(link.times.get(request) for request in self._running):
            self._step()

    def alone(self, seconds: float) -> None:
        """Run the decoding requests alone."""
        for _ in self._phase("alone"):
            if self._elapsed() > seconds:
                break

    def ordinary(self, seconds: float) -> None:
        """Run prompts that fit the device, one after the other."""
        waiting: list[int] = []
        for _ in self._phase("ordinary"):
            waiting = [request for request in waiting if request not in self._link.ended]
            if self._elapsed() > seconds:
                break
            while len(waiting) < 2:  # the second begins in the step in which the first one ends
                waiting.append(self._submit(self._words(self._ordinary_tokens), 1))
        for request in waiting:
            self._link.put(Abort(request))

    def long(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> bool:
        """Run the long prompt and its answer. Returns whether the answer is right.

        Raises:
            RuntimeError: the engine failed.
        """
        request = self._submit(prompt, len(answer))
        for _ in self._phase("prefill"):
            if request in self._link.times or request in self._link.ended:
                break
        for _ in self._phase("decode"):
            if request in self._link.ended:
                break
        if (error := self._link.ended[request]) is not None:
            raise RuntimeError(error)
        return tuple(self._link.tokens[request]) == answer

    def end(self) -> None:
        """End the decoding requests."""
        for request in self._running:
            self._link.put(Abort(request))
        self._engine.step()

    def _phase(self, name: str) -> Iterator[None]:
        """Step the engine until the caller breaks the loop."""
        before = replace(self._runner.loads)
        self.phases.append(phase := Phase(name, time.perf_counter()))
        try:
            while True:
                yield
                self._step()
        finally:
            phase.end, after = time.perf_counter(), self._runner.loads
            phase.loads = LoadTotals(
                after.bytes - before.bytes, after.seconds - before.seconds, after.waited - before.waited
            )
            for request in self._streams:
                times = [at for at in self._link.times.get(request, ()) if phase.start <= at <= phase.end]
                phase.gaps.extend(after - before for before, after in pairwise(times))

    def _step(self) -> None:
        """Run one step of the engine, and replace decoding requests that have ended.

        Raises:
            RuntimeError: a decoding request was refused.
        """
        self._engine.step()
        for index, request in enumerate(self._running):
            if request in self._link.ended:
                if (error := self._link.ended[request]) is not None:
                    raise RuntimeError(error)
                self._running[index] = self._submit(self._words(32), STREAM_TOKENS)
                self._streams.add(self._running[index])

    def _elapsed(self) -> float:
        return time.perf_counter() - self.phases[-1].start

    def _words(self, length: int) -> tuple[int, ...]:
        return tuple(self._rng.integers(2, self._vocab_size, length).tolist())

    def _submit(self, prompt: tuple[int, ...], max_tokens: int) -> int:
        request = next(self._ids)
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
        self._link.put(Submit(request, prompt, sampling))
        return request


def read_limit(disk: Path | None, info: EngineInfo) -> float | None:
    """Measure how fast one thread reads the engine's file, a layer of a page at a time."""
    if disk is None:
        return None
    page_size = info.config.cache.page_size
    assert page_size is not None, f"not resolved: {info.config}"
    return read_bandwidth(disk, page_size * info.kv_sizes.layer_token_bytes)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        length = tokens_of(args.long)
        options = dict(option_of(text) for text in args.option)
        if not args.out.parent.is_dir():
            raise ValueError(f"--out must be in a folder that exists, got {args.out}")
        shape = replace(SHAPES[args.size], max_positions=max(1 << 20, length + ROOM))
        needle = needle_prompt(shape, length, 0.5, answer_len=args.answer)
        with tempfile.TemporaryDirectory(prefix="sluice-neighbours-") as folder:
            write_recall_checkpoint(Path(folder), shape)
            link = TimedLink()
            options |= disk_options(args.disk, shape, length, args.dtype)
            config = EngineConfig.from_options({"model": folder, "dtype": args.dtype, **options})
            engine, info = build_engine(config, link, progress=False)
            with slow_disk(args.disk_mb_per_second and args.disk_mb_per_second * 1e6), closing(engine):
                freeze_gc()  # as a server's engine does
                run = Run(engine, link, args.streams, shape.vocab_size, args.ordinary)
                run.alone(args.seconds)
                run.ordinary(args.seconds)
                is_right = run.long(needle.prompt, needle.answer)
                run.end()
    except (ValueError, ConfigError, RuntimeError) as error:
        print(f"offload_neighbours: error: {error}", file=sys.stderr)
        return 1
    phases = {phase.name: phase.as_dict() for phase in run.phases}
    record: dict[str, Any] = {
        "benchmark": "offload_neighbours",
        "shape": asdict(shape),
        "dtype": args.dtype,
        "streams": args.streams,
        "long_tokens": length,
        "ordinary_tokens": args.ordinary,
        "is_right": is_right,
        "phases": phases,
        "itl_p99_of_ordinary": {
            name: phases[name]["itl_p99_ms"] / phases["ordinary"]["itl_p99_ms"] for name in ("prefill", "decode")
        },
        "options": dict(option_of(text) for text in args.option),
        "threads": info.config.model.threads,
        "disk_mb_per_second": args.disk_mb_per_second,
        "memory": info.memory.as_dict(),
        "read_limit_bytes_per_second": read_limit(args.disk, info),
        "versions": versions(IN_PROCESS_PACKAGES),
        "machine": machine(),
    }
    args.out.with_name(f"{args.out.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for own in phases.values():
        shown = (f"{name} {value:.4g}" if isinstance(value, float) else str(value) for name, value in own.items())
        print("  ".join(shown))
    print(f"answer right: {is_right}; p99 against ordinary prompts: {record['itl_p99_of_ordinary']}")
    return int(not is_right)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without an ending"
    )
    parser.add_argument("--long", default="128K", help="tokens of the long prompt (default: 128K)")
    parser.add_argument("--answer", type=int, default=64, help="tokens of its answer (default: 64)")
    parser.add_argument("--ordinary", type=int, default=4096, help="tokens of an ordinary prompt (default: 4096)")
    parser.add_argument("--streams", type=int, default=4, help="requests that decode all the time (default: 4)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the phases without the long prompt")
    parser.add_argument("--size", default="small", choices=SHAPES, help="size of the checkpoint (default: small)")
    parser.add_argument("--disk", type=Path, metavar="FILE", help="page file of the engine, created empty")
    parser.add_argument(
        "--disk-mb-per-second",
        type=float,
        metavar="N",
        help="read rate of a slower disk than there is",
    )
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the model (default: bfloat16)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the engine; may be repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
