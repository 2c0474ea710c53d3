"""Measure how a long prompt delays decoding requests, for several chunk sizes: `sluice bench --preset interference`.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b
    python benchmarks/interference.py --checkpoint build/checkpoints/qwen3-0.6b --out benchmarks/results/qwen3-0.6b

Four requests decode, and two prompts of 4,000 tokens arrive; ITL targets of 4, 8 and 16 steps of decodes, chunks of 64
to 2,048 tokens, and whole prompts, in turns. It writes PREFIX-SIZE.json for each (for `sluice compare` and
`sluice bench --from`), and PREFIX.json with the medians. `--peer vllm` measures another engine in the same way.

`--contenders PEER:WEIGHTS:SIZE,...` measures several engines in turns, such as
`sluice:int8:default,sluice:int8:128,llama.cpp:q8_0:64`; `default` leaves the size to the engine.
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
from benchmarks.peers.measure import PEERS, peer_named
from benchmarks.peers.peer import Settings
from sluice.bench import BenchError
from sluice.bench.compare import Measure
from sluice.bench.results import BenchResult, machine
from sluice.bench.workload import LONG, SHORT
from sluice.config import ConfigError

STREAMS, ALL = "decoders' tokens/s in long prefills", "tokens/s, prompts included"
OFF = "off"
DEFAULT = "default"
SIZES = "4x,8x,16x,64,128,256,512,1024,2048,off"
WHOLE_PROMPT = 8192
"""A budget of another engine that holds a whole long prompt."""
ITL_P50, ITL_P99, ITL_MAX = "decoders' ITL p50", "decoders' ITL p99", "decoders' ITL max"
MIXED_P50, MIXED_P99, TTFT = "ITL p50 in long prefills", "ITL p99 in long prefills", "long prompts' TTFT"
MEASURES = (
    Measure(ITL_P50, "ms", lambda summary: summary.by_kind[SHORT].itl.p50),
    Measure(ITL_P99, "ms", lambda summary: summary.by_kind[SHORT].itl.p99),
    Measure(ITL_MAX, "ms", lambda summary: summary.by_kind[SHORT].itl.max),
    Measure(MIXED_P50, "ms", lambda summary: summary.itl_in_windows.p50),
    Measure(MIXED_P99, "ms", lambda summary: summary.itl_in_windows.p99),
    Measure(TTFT, "ms", lambda summary: summary.by_kind[LONG].ttft.mean),
)
RATES = (
    Measure(STREAMS, "tokens/s", lambda summary: _per_second(summary.itl_in_windows.count, summary.window_seconds)),
    Measure(ALL, "tokens/s", lambda summary: summary.input_per_second + summary.output_per_second),
)


def _per_second(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


def configurations(peer: str, settings: Settings, sizes: Sequence[str]) -> list[Configuration]:
    """Make a configuration for each chunk size.

    Raises:
        ConfigError: a size is neither a number of at least 1 nor "off", or is given twice.
    """
    if len(set(sizes)) < len(sizes):
        raise ConfigError(f"--sizes must name each size once, got {','.join(sizes)}")
    return [Configuration(size, peer, _sized(peer, settings, size)) for size in sizes]


def contenders(text: str, settings: Settings) -> list[Configuration]:
    """Make the configurations of `PEER:WEIGHTS:SIZE,...`.

    Raises:
        ConfigError: a text is not of this form, the engine or its weights are unknown, or the size is.
    """
    found = []
    for each in text.split(","):
        peer, _, rest = each.partition(":")
        weights, _, size = rest.partition(":")
        if peer not in PEERS or not size:
            raise ConfigError(f"--contenders must be PEER:WEIGHTS:SIZE with a PEER of {', '.join(PEERS)}, got {each!r}")
        if weights not in peer_named(peer).weights:
            raise ConfigError(f"{peer} has weights in {', '.join(peer_named(peer).weights)}, got {weights!r}")
        found.append(
            Configuration(each.replace(":", "-"), peer, _sized(peer, replace(settings, weights=weights), size))
        )
    return found


def _sized(peer: str, settings: Settings, size: str) -> Settings:
    if size == OFF and peer == "sluice":
        return replace(settings, more=(*settings.more, "--chunked-prefill-size", "-1"))
    if size == OFF:
        return replace(settings, budget=WHOLE_PROMPT)
    if size == DEFAULT:
        return settings
    if peer == "sluice" and size[:1].isdecimal() and size.endswith(("x", "s")):
        return replace(settings, more=(*settings.more, "--itl-target", size))
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(
            f"--sizes must be integers of at least 1, {OFF}, {DEFAULT}, or ITL targets of sluice such as 8x or 160ms,"
            f" with commas between them, got {size!r}"
        )
    return replace(settings, budget=int(size))


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    settings = Settings(args.checkpoint, threads=args.threads, max_running=args.max_running)
    given: dict[str, Any] = {"preset": "interference"}
    if args.long_tokens is not None:
        given["prompt_tokens"] = str(args.long_tokens)
    try:
        if args.contenders is None:
            chosen = configurations(args.peer, settings, args.sizes.split(","))
        else:
            chosen = contenders(args.contenders, settings)
        if not args.out.parent.is_dir():
            raise ConfigError(f"--out must be in a folder that exists, got {args.out}")
        results = alternate(chosen, given, args.repeats, args.out)
    except (ConfigError, SetupError, BenchError) as error:
        print(f"interference: error: {error}", file=sys.stderr)
        return 1
    _write(args.out, args.contenders or args.peer, results)
    return 0


def _write(prefix: Path, peer: str, results: dict[str, BenchResult]) -> None:
    figures = {label: medians(result, MEASURES) for label, result in results.items()}
    rates = {label: medians(result, RATES) for label, result in results.items()}
    first = next(iter(results.values()))
    record = {
        "benchmark": "interference",
        "peer": peer,
        "model": first.target["model"],
        "rounds": len(first.runs),
        "medians_in_seconds": figures,
        "medians_per_second": rates,
        "workload": first.settings["workload"],
        "commands": {label: result.target["peer"] for label, result in results.items()},
        "versions": first.versions,
        "machine": machine(),
    }
    prefix.with_name(f"{prefix.name}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for label, own in figures.items():
        own_rates = rates[label]
        shown = "  ".join(
            [f"{name} {1000 * value:.1f}" for name, value in own.items() if value is not None]
            + [f"{name} {value:.1f}" for name, value in own_rates.items() if value is not None]
        )
        print(f"{label:>6}  {shown}")


def _parser() -> argparse.ArgumentParser:
    defaults = asdict(Settings(Path()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a Hugging Face folder")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="PREFIX", help="path of the results, without an ending"
    )
    parser.add_argument("--peer", default="sluice", choices=PEERS, help="engine to measure (default: sluice)")
    parser.add_argument("--contenders", metavar="PEER:WEIGHTS:SIZE,...", help="engines to measure in turns")
    parser.add_argument("--sizes", default=SIZES, help=f"tokens of a chunk, or off (default: {SIZES})")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--threads", type=int, default=defaults["threads"], help="threads of the engine (default: 2)")
    parser.add_argument(
        "--max-running", type=int, default=defaults["max_running"], help="requests decoded at once (default: 8)"
    )
    parser.add_argument(
        "--long-tokens", type=int, help="tokens of a long prompt; fewer to test the script (default: 4000)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
