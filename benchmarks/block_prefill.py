"""Compare the prefill of a model of block diffusion with that of the causal model of the same shape, in turns.

    python benchmarks/block_prefill.py --checkpoint build/checkpoints/qwen3-0.6b [--prompt N] [--turns N] [--by-block N]

The checkpoint is a Qwen3. The other model is an SDAR of the same files: only its attention differs. A turn is the time
to the first tokens of a new prompt, which are a token of the one and a block of the other. Blocks are filled in one
pass (threshold 0), which is part of the prompt's last chunk. It prints medians and the median of the ratios of
neighbouring turns, with the smallest and the largest, of the time that passed and of the time on all processors, which
other work on the machine changes less. With `--by-block` it ends with the time of a prompt of so many
tokens that advances a block a step (`--dllm-prefill block`), as SGLang's do, beside that of ordinary chunks.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from sluice import LLM, SamplingParams

ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, seed=0)


def as_sdar(checkpoint: Path, folder: Path, block_size: int) -> Path:
    """Make an SDAR of the files of a Qwen3; returns its folder."""
    for file in checkpoint.resolve().iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    mask = min(151_669, config["vocab_size"] - 1)
    config |= {"architectures": ["SDARForCausalLM"], "block_size": block_size, "mask_token_id": mask}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Took(NamedTuple):
    """Seconds."""

    passed: float
    computed: float
    """On all processors."""


def timer(llm: LLM, draw: random.Random, vocab_size: int) -> Callable[[int], Took]:
    """Return what prefills a new prompt of so many tokens, and gives the time that took."""

    def seconds(length: int) -> Took:
        prompt = [draw.randrange(1000, vocab_size - 1000) for _ in range(length)]
        begun, computed = time.perf_counter(), time.process_time()
        llm.generate([prompt], ONE)
        return Took(time.perf_counter() - begun, time.process_time() - computed)

    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder with a Qwen3")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of a prompt (default: 4000)")
    parser.add_argument("--block-size", type=int, default=4, help="tokens of a block (default: 4)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine (default: 2)")
    parser.add_argument("--turns", type=int, default=5, help="of each model (default: 5)")
    parser.add_argument("--by-block", type=int, default=0, help="tokens of a prompt that advances a block a step")
    args = parser.parse_args(arguments)
    vocab_size = json.loads((args.checkpoint / "config.json").read_text())["vocab_size"]
    options: dict[str, Any] = {
        "threads": args.threads,
        "max_total_tokens": args.prompt + 512,
        "max_running_requests": 2,
    }
    in_one_pass = {"dllm_algorithm_config": '{"threshold": 0}'}
    with tempfile.TemporaryDirectory() as made:
        sdar = as_sdar(args.checkpoint, Path(made), args.block_size)
        causal, blocks = LLM(args.checkpoint, **options), LLM(sdar, **options, **in_one_pass)
        times = [timer(llm, random.Random(number), vocab_size) for number, llm in enumerate((causal, blocks))]
        found: tuple[list[Took], list[Took]] = ([], [])
        for turn in range(args.turns + 1):
            for measure, turns in zip(times, found, strict=True):
                took = measure(args.prompt)
                if turn:  # the first one warms up
                    turns.append(took)
            if turn:
                print(
                    f"turn {turn}: {found[0][-1].passed:.2f} s causal, {found[1][-1].passed:.2f} s blocks", flush=True
                )
        for name in Took._fields:
            causal_seconds, seconds = ([getattr(each, name) for each in turns] for turns in found)
            ratios = [b / a for a, b in zip(causal_seconds, seconds, strict=True)]
            medians = [statistics.median(values) for values in (causal_seconds, seconds, ratios)]
            print(
                f"{name:>8}: causal {medians[0]:.2f} s, blocks {medians[1]:.2f} s,"
                f" ratio {medians[2]:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )
        if args.by_block:
            ordinary = times[1](args.by_block)
            causal.close()
            blocks.close()
            with LLM(sdar, **options, **in_one_pass, dllm_prefill="block") as slow:
                by_block = timer(slow, random.Random(9), vocab_size)(args.by_block)
            print(
                f"prompt of {args.by_block}: in chunks {ordinary.passed:.2f} s, a block a step {by_block.passed:.2f} s"
            )


if __name__ == "__main__":
    main()
