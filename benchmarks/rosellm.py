"""Measure the effect of a prefill budget, and of chunks: RoseLLM's measurement in Sluice's terms, in turns.

    python benchmarks/make_checkpoint.py --shape gpt2-124m --out build/checkpoints/gpt2-124m
    python benchmarks/rosellm.py --checkpoint build/checkpoints/gpt2-124m --out benchmarks/results/gpt2-124m

    prefill-first           whole prompts, in steps without decodes
    prefill-first-budget    the same, at most --max-prefill-tokens of prompts in a step
    whole                   whole prompts and decodes in one step
    whole-budget            the same with the budget
    chunked                 prompts cut into chunks that share steps with decodes

RoseLLM's own loop computes the prompts it admits and then decodes every request once: that is `whole`. With
`prefill-first` a prompt that the budget refuses runs in the next step, again before decodes: the budget does not help
decoding requests.

The presets are measured one after the other. Each writes PREFIX-PRESET-WAY.json (for `sluice compare`) and
PREFIX-PRESET.json with medians and ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import Configuration, alternate, medians
from benchmarks.peers.environment import SetupError
from benchmarks.peers.peer import Settings
from sluice.bench import BenchError
from sluice.bench.compare import Comparison, Measure, compare, table
from sluice.bench.results import BenchResult, machine
from sluice.config import ConfigError

PREFILL_FIRST, WHOLE, CHUNKED = "prefill-first", "whole", "chunked"
PRESETS = ("rosellm", "rosellm-long", "rosellm-burst")
UNCUT = ("--chunked-prefill-size", "-1")
PAIRS = (
    (PREFILL_FIRST, f"{PREFILL_FIRST}-budget"),
    (WHOLE, f"{WHOLE}-budget"),
    (f"{WHOLE}-budget", CHUNKED),
    (PREFILL_FIRST, CHUNKED),
    (WHOLE, CHUNKED),
)
"""Pairs to compare, the base first."""
MEASURES = (
    Measure("ITL p50", "ms", lambda summary: summary.all.itl.p50),
    Measure("ITL p95", "ms", lambda summary: summary.all.itl.p95),
    Measure("ITL p99", "ms", lambda summary: summary.all.itl.p99),
    Measure("ITL max", "ms", lambda summary: summary.all.itl.max),
    Measure("TTFT p50", "ms", lambda summary: summary.all.ttft.p50),
    Measure("TTFT p99", "ms", lambda summary: summary.all.ttft.p99),
    Measure("output tokens/s", "", lambda summary: summary.output_per_second, bigger_is_better=True),
)


def configurations(settings: Settings, budget: int, chunk: int) -> list[Configuration]:
    """Make the five configurations."""
    limit = ("--max-prefill-tokens", str(budget))
    ways = {
        PREFILL_FIRST: ("--schedule", "prefill-first", *UNCUT),
        f"{PREFILL_FIRST}-budget": ("--schedule", "prefill-first", *UNCUT, *limit),
        WHOLE: ("--schedule", "mixed", *UNCUT),
        f"{WHOLE}-budget": ("--schedule", "mixed", *UNCUT, *limit),
        CHUNKED: ("--schedule", "mixed", "--chunked-prefill-size", str(chunk)),
    }
    return [Configuration(label, "sluice", replace(settings, more=more)) for label, more in ways.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    settings = Settings(args.checkpoint, threads=args.threads, max_running=args.max_running)
    try:
        if not args.out.parent.is_dir():
            raise ConfigError(f"--out must be in a folder that exists, got {args.out}")
        for preset in args.presets.split(","):
            if preset not in PRESETS:
                raise ConfigError(f"--presets must be among {','.join(PRESETS)}, got {preset!r}")
            prefix = args.out.with_name(f"{args.out.name}-{preset}")
            chosen = configurations(settings, args.max_prefill_tokens, args.chunked_prefill_size)
            results = alternate(chosen, {"preset": preset}, args.repeats, prefix)
            _write(prefix, results)
    except (ConfigError, SetupError, BenchError) as error:
        print(f"rosellm: error: {error}", file=sys.stderr)
        return 1
    return 0


def _write(prefix: Path, results: dict[str, BenchResult]) -> None:
    figures = {label: medians(result, MEASURES) for label, result in results.items()}
    comparisons: dict[str, Comparison] = {
        f"{other} / {base}": compare(results[base], results[other], paired=True) for base, other in PAIRS
    }
    first = results[WHOLE]
    record: dict[str, Any] = {
        "benchmark": "rosellm",
        "model": first.target["model"],
        "rounds": len(first.runs),
        "medians": figures,
        "ratios_of_medians": {name: _ratios(figures, name) for name in comparisons},
        "comparisons": {name: asdict(comparison) for name, comparison in comparisons.items()},
        "workload": first.settings["workload"],
        "commands": {label: result.target["peer"] for label, result in results.items()},
        "versions": first.versions,
        "machine": machine(),
    }
    prefix.with_name(f"{prefix.name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for name, comparison in comparisons.items():
        print(f"\n{name}\n{table(comparison)}")


def _ratios(figures: dict[str, dict[str, float | None]], name: str) -> dict[str, float]:
    other, _, base = name.partition(" / ")
    return {
        measure: above / below
        for measure, below in figures[base].items()
        if below and (above := figures[other][measure]) is not None
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without an ending"
    )
    parser.add_argument(
        "--presets", default=",".join(PRESETS), help=f"presets to measure (default: {','.join(PRESETS)})"
    )
    parser.add_argument("--max-prefill-tokens", type=int, default=224, help="the budget (default: 224)")
    parser.add_argument("--chunked-prefill-size", type=int, default=64, help="tokens of a chunk (default: 64)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the engine (default: 2)")
    parser.add_argument("--max-running", type=int, default=64, help="requests at once (default: 64)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
