"""Measure an engine with `sluice bench`: install it, start it, send the workload, stop it.

    python benchmarks/peers/run.py --peer vllm --checkpoint build/checkpoints/qwen3-0.6b --preset interference --json A

Options that are not listed here are those of `sluice bench`. The result file holds versions, command, environment and
machine; `sluice compare` and `sluice bench --from` read it like any other. The README lists the needs of each peer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.environment import SetupError
from benchmarks.peers.measure import IN_PROCESS, PEERS, measure, peer_named
from benchmarks.peers.peer import Settings
from sluice.bench import BenchError
from sluice.bench.command import checked_options, checked_path
from sluice.bench.html import page
from sluice.bench.options import add_bench_arguments
from sluice.bench.report import table
from sluice.bench.results import read_result, write_file
from sluice.config import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    args, rest = _parser().parse_known_args(arguments)
    try:
        return _run(args, _bench_options(rest))
    except (ConfigError, BenchError, SetupError) as error:
        print(f"{args.peer}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument(
        "--setup-only", action="store_true", help="install, convert the checkpoint if there is one, and exit"
    )
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face folder, see benchmarks/make_checkpoint.py")
    parser.add_argument("--weights", default="bf16", help="format of the weights, see the README (default: bf16)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the engine (default: 2)")
    parser.add_argument("--budget", type=int, help="most tokens of a step (default: the engine's own)")
    parser.add_argument("--max-running", type=int, default=8, help="requests decoded at once (default: 8)")
    parser.add_argument("--kv-tokens", type=int, default=32_768, help="size of the KV pool (default: 32768)")
    parser.add_argument(
        "--peer-arg", action="append", default=[], metavar="ARG", help="another argument for a server: --peer-arg=--x"
    )
    parser.add_argument("--json", help="the result file")
    parser.add_argument("--html", help="a report")
    return parser


def _bench_options(rest: Sequence[str]) -> dict[str, Any]:
    """Return the given options of `sluice bench` by name."""
    parser = argparse.ArgumentParser(prog="run.py", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_bench_arguments(parser)
    given = vars(parser.parse_args(rest))
    for name in ("url", "model", "source"):
        if name in given:
            raise ConfigError(f"--{name} is not for peers: --peer names the engine")
    checked_options(dict(given))
    return given


def _run(args: argparse.Namespace, given: dict[str, Any]) -> int:
    json_path, html_path = checked_path("--json", args.json), checked_path("--html", args.html)
    peer = peer_named(args.peer)
    for name in ("threads", "max_running", "kv_tokens", "budget"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if args.checkpoint is None and not args.setup_only:
        raise ConfigError("--checkpoint must name a folder; benchmarks/make_checkpoint.py writes one")
    if args.checkpoint is not None and not (args.checkpoint / "config.json").is_file():
        raise ConfigError(f"--checkpoint must name a folder with a config.json, got {str(args.checkpoint)!r}")
    if args.peer_arg and args.peer in IN_PROCESS:
        raise ConfigError(f"--peer-arg is for servers; {args.peer} runs in process")
    if args.weights not in peer.weights:
        raise ConfigError(f"--weights must be one of {', '.join(peer.weights)} with {args.peer}, got {args.weights!r}")
    peer.set_up()
    if args.checkpoint is None:
        return 0
    settings = Settings(
        *(args.checkpoint, args.threads, args.budget, args.max_running, args.kv_tokens, tuple(args.peer_arg)),
        weights=args.weights,
    )
    peer.prepare(settings)
    if args.setup_only:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        out = json_path or Path(folder) / "result.json"
        status = measure(args.peer, settings, given, out)
        if out.is_file():
            result = read_result(out)
            print(table(result))
            if html_path is not None:
                write_file(html_path, page(result).encode())
    return status


if __name__ == "__main__":
    sys.exit(main())
