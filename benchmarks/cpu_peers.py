"""Compare Sluice on a CPU with other engines, on weights of the same bits, on a machine whose speed changes.

    python benchmarks/make_checkpoint.py --shape qwen3-0.6b --out build/checkpoints/qwen3-0.6b
    python benchmarks/cpu_peers.py --checkpoint build/checkpoints/qwen3-0.6b --json FILE \\
        --contenders sluice:int8,sluice:bf16,llama.cpp:q8_0,openvino:int8

All engines stay up. Each turn measures every row with every engine, one after the other, and the machine's rates just
before. The first contender is compared with the others by the ratios of each turn: their median and quartiles. The file
is written after every measurement, and an interrupted run continues where it was. `--rows` selects.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.cpu.contenders import Contender
from benchmarks.cpu.machine import Probe
from benchmarks.cpu.record import Record
from benchmarks.cpu.rows import ROWS, Row, Session, sessions
from benchmarks.cpu.session import measure_session
from benchmarks.cpu.table import table
from benchmarks.peers.environment import SetupError
from sluice.config import ConfigError

DEFAULT_CONTENDERS = "sluice:bf16,llama.cpp:bf16,openvino:bf16"
DEFAULT_ROWS = "decode-1,decode-8,decode-32,decode-64,prefill,interference"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    try:
        rows = _rows(args.rows)
        contenders = [Contender.parse(text) for text in dict.fromkeys(args.contenders.split(","))]
        for name in ("turns", "threads"):
            if (value := vars(args)[name]) < 1:
                raise ConfigError(f"--{name} must be at least 1, got {value}")
        if not args.json.parent.is_dir():
            raise ConfigError(f"--json must be in a folder that exists, got {args.json}")
        if not (args.checkpoint / "config.json").is_file():
            raise ConfigError(f"--checkpoint must be a folder of make_checkpoint.py, got {args.checkpoint}")
        record = Record.opened(args.json, args.checkpoint, args.threads)
        found = sessions(rows, args.checkpoint, args.threads)
        _prepare(found, contenders)
    except (ConfigError, SetupError) as error:
        print(f"cpu_peers: error: {error}", file=sys.stderr)
        return 2
    probe = Probe(args.threads)
    for session in found:
        measure_session(record, session, contenders, args.turns, probe)
    print(table(record, rows, contenders))
    return 0


def _rows(text: str) -> list[Row]:
    known = {row.name: row for row in ROWS}
    for name in text.split(","):
        if name not in known:
            raise ConfigError(f"--rows must be among {', '.join(known)}, with commas between them, got {name!r}")
    return [known[name] for name in dict.fromkeys(text.split(","))]


def _prepare(found: Sequence[Session], contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        contender.prepare(found[0].settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="see make_checkpoint.py")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="file of the results")
    parser.add_argument(
        "--contenders",
        default=DEFAULT_CONTENDERS,
        metavar="LIST",
        help=f"ENGINE:WEIGHTS, the first of which is compared with the others (default: {DEFAULT_CONTENDERS})",
    )
    parser.add_argument("--rows", default=DEFAULT_ROWS, help=f"rows to measure (default: {DEFAULT_ROWS})")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each engine (default: 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
