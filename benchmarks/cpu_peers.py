"""Compare Sluice on a CPU with other engines in one table, with the best peer of each row measured in the same run.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b
    python benchmarks/make_checkpoint.py --shape gpt2-124m --out build/checkpoints/gpt2-124m
    python benchmarks/cpu_peers.py --json benchmarks/results/cpu_peers.json

Engines take turns, A B C A B C; rows that need the same settings share a start. The file is written after every start,
and an interrupted run continues where it was. `--rows` and `--peers` select. The defaults take about half an hour on
two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cpu.record import Record
from benchmarks.cpu.rows import ROWS, sessions
from benchmarks.cpu.session import measure_session
from benchmarks.cpu.table import table
from benchmarks.peers.environment import SetupError
from benchmarks.peers.measure import PEERS, peer_named
from sluice.config import ConfigError

DEFAULT_PEERS = "vllm,openvino"
"""The peers that were best on some row. llama.cpp and transformers take longer than all others together."""
OURS = "sluice"
T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        rows = _chosen(args.rows.split(","), {row.name: row for row in ROWS}, "--rows")
        peers = [OURS, *_chosen(args.peers.split(","), {name: name for name in PEERS if name != OURS}, "--peers")]
        if args.rounds < 1:
            raise ConfigError(f"--rounds must be at least 1, got {args.rounds}")
        if args.threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {args.threads}")
        if not args.json.parent.is_dir():
            raise ConfigError(f"--json must be in a folder that exists, got {args.json}")
        found = sessions(rows, args.checkpoints, args.threads)
        for session in found:
            if not (session.settings.checkpoint / "config.json").is_file():
                raise ConfigError(f"--checkpoints must hold {session.settings.checkpoint.name}: see make_checkpoint.py")
        record = Record.opened(args.json, args.threads)
        for peer in peers:
            peer_named(peer).set_up()
    except (ConfigError, SetupError) as error:
        print(f"cpu_peers: error: {error}", file=sys.stderr)
        return 2
    for turn in range(args.rounds):
        for session in found:
            for peer in peers:
                measure_session(record, session, peer, turn)
    print(table(record, rows, OURS, peers))
    return 0


def _chosen(names: Sequence[str], known: dict[str, T], flag: str) -> list[T]:
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag} must be among {', '.join(known)}, with commas between them, got {name!r}")
    return [known[name] for name in dict.fromkeys(names)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file of the results")
    names = ",".join(row.name for row in ROWS)
    parser.add_argument("--rows", default=names, help=f"rows to measure (default: {names})")
    parser.add_argument("--peers", default=DEFAULT_PEERS, help=f"engines beside Sluice (default: {DEFAULT_PEERS})")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each engine (default: 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine (default: 2)")
    parser.add_argument("--checkpoints", type=Path, default=Path("build/checkpoints"), help="folder of the checkpoints")
    return parser


if __name__ == "__main__":
    sys.exit(main())
