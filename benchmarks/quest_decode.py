"""Measure what Quest spares a decoded token behind a very long context: the time of its layers, and what is found.

    $ .venv/bin/python benchmarks/quest_decode.py --length 1M --policies full,quest:4096:1 --disk build/pages \\
        --option threads=2

The haystack has three words in turn between five needles, for the checkpoint that recalls exactly, whose second layer
selects. It is read once, with a window (`long_context/sparse_prefill.py`): what a decode costs does not depend on how
its context was computed. Each policy then has an engine of its own over the same page file, and answers every question.
The time of a layer is all that passes in its attention, waits for blocks included. With --mass exact attention is
computed once more, to tell which share of it each policy would have kept.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.exact_recall import SHAPES, Needle, needle_prompts, write_recall_checkpoint
from benchmarks.exact_recall.fillers import among_fillers
from benchmarks.long_context import kept_mass
from benchmarks.long_context.link import TimedLink
from benchmarks.long_context.sparse_prefill import POLICY
from benchmarks.long_context.speed import measured_speed
from benchmarks.needles import DEPTHS, ROOM, disk_options, option_of, tokens_of
from sluice.assembly.engine import build_engine
from sluice.assembly.offloading import policy_of
from sluice.config import ConfigError, EngineConfig, OffloadConfig
from sluice.engine.engine import Engine
from sluice.engine.messages import Submit
from sluice.runner.offload.attention import OffloadedAttention
from sluice.types import SamplingParams

OPTIONS = {"max_total_tokens": 16384, "offload_above": 8192, "chunked_prefill_size": 512}


@contextmanager
def timed_layers() -> Iterator[dict[int, list[float]]]:
    """Yield the seconds that each call of a layer's attention takes from now on: one a layer for each chunk."""
    times: dict[int, list[float]] = defaultdict(list)
    plain = OffloadedAttention.attend

    def attend(attention: OffloadedAttention, q: torch.Tensor, kv: Any, *rest: Any, **more: Any) -> Any:
        began = time.perf_counter()
        found = plain(attention, q, kv, *rest, **more)
        times[attention._layers[id(kv)]].append(time.perf_counter() - began)
        return found

    OffloadedAttention.attend = attend  # type: ignore[method-assign]
    try:
        yield times
    finally:
        OffloadedAttention.attend = plain  # type: ignore[method-assign]


class Asker:
    """Asks an engine one question after the other."""

    def __init__(self, engine: Engine, link: TimedLink) -> None:
        self._engine = engine
        self._link = link
        self._ids = count()

    def ask(self, prompt: Sequence[int], tokens: int) -> tuple[list[int], list[float]]:
        """Return the tokens of an answer, and when they came.

        Raises:
            RuntimeError: the engine failed.
        """
        request, link = next(self._ids), self._link
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, seed=0)
        link.put(Submit(request, tuple(prompt), sampling))
        while request not in link.ended:
            self._engine.step()
        if (error := link.ended[request]) is not None:
            raise RuntimeError(error)
        return link.tokens[request], link.times[request]


def answered(options: dict[str, Any], needles: Sequence[Needle]) -> str:
    """Ask an engine with these options everything, and return its figures as a line."""
    link, right, decodes = TimedLink(), 0, []
    engine, _ = build_engine(EngineConfig.from_options(options), link, progress=False)
    with closing(engine), timed_layers() as layers:
        asker = Asker(engine, link)
        for needle in needles:
            tokens, times = asker.ask(needle.prompt, len(needle.answer))
            right += tuple(tokens) == needle.answer
            decodes += [after - before for before, after in pairwise(times)]
    each = len(needles[0].answer)
    # The first chunk of each answer is the question's.
    of_layers = {
        layer: [seconds for at, seconds in enumerate(found) if at % each] for layer, found in sorted(layers.items())
    }
    shown = "  ".join(f"layer {layer} {1000 * statistics.median(found):.2f} ms" for layer, found in of_layers.items())
    return f"{right} of {len(needles)} right  a decoded token {1000 * statistics.median(decodes):.2f} ms  {shown}"


def kept(options: dict[str, Any], needle: Needle, policies: Sequence[str], page_size: int) -> None:
    """Print the share of the attention of one answer that each policy would have kept."""
    link = TimedLink()
    engine, _ = build_engine(
        EngineConfig.from_options(options | {"sparse_policy": kept_mass.POLICY}), link, progress=False
    )
    with closing(engine):
        inner: Any = engine.runner
        policy = inner._offload._policy
        assert isinstance(policy, kept_mass.KeptMass), f"the policy is {policy}"
        policy.policies = {name: policy_of(OffloadConfig(sparse_policy=name), page_size) for name in policies}
        Asker(engine, link).ask(needle.prompt, len(needle.answer))
        for name, layers in policy.shares().items():
            for layer, (mean, heads) in layers.items():
                of_heads = " ".join(f"{share:.3f}" for share in heads)
                print(f"{name:<16} layer {layer}: {mean:.3f} of the attention kept, by head {of_heads}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    policies = args.policies.split(",")
    try:
        length = tokens_of(args.length)
        given = {**OPTIONS, "page_size": args.page_size, **dict(option_of(text) for text in args.option)}
        shape = replace(SHAPES["small"], max_positions=max(1 << 20, length + ROOM))
        needles = among_fillers(shape, needle_prompts(shape, length, DEPTHS, seed=length))
        with tempfile.TemporaryDirectory(prefix="sluice-quest-") as name:
            folder = write_recall_checkpoint(Path(name), shape)
            options = {"model": str(folder), "dtype": "bfloat16", **given}
            options |= disk_options(args.disk, shape, length, "bfloat16", goes_on=args.keep)
            began, link = time.perf_counter(), TimedLink()
            config = EngineConfig.from_options(options | {"sparse_policy": POLICY})
            engine, _ = build_engine(config, link, progress=False)
            with closing(engine):
                Asker(engine, link).ask(needles[0].prompt[: -shape.previous], 1)
            print(f"{length} tokens read with a window in {time.perf_counter() - began:.1f} s", flush=True)
            figures = measured_speed(int(given.get("threads", 1))).figures()
            print("  ".join(f"{name} {value:.3g}" for name, value in figures.items()), flush=True)
            for _ in range(args.rounds):
                for policy in policies:
                    print(f"{policy:<16} {answered(options | {'sparse_policy': policy}, needles)}", flush=True)
            if args.mass:
                kept(options, needles[2], policies, args.page_size)
    except (ValueError, ConfigError, RuntimeError) as error:
        print(f"quest_decode: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", default="1M", help="tokens of the prompts (default: 1M)")
    parser.add_argument("--policies", default="full,quest:4096:1", help="policies, separated by commas")
    parser.add_argument("--page-size", type=int, default=16, help="tokens of a page (default: 16)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each policy is measured, in turn (default: 1)")
    parser.add_argument("--disk", type=Path, required=True, metavar="FILE", help="page file of the engines")
    parser.add_argument("--keep", action="store_true", help="go on with the page file of an earlier run")
    parser.add_argument("--mass", action="store_true", help="tell which share of exact attention each policy keeps")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the engines; may be repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
