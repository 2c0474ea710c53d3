"""Measure the disk tier: what it saves, and how it delays other requests.

    python benchmarks/tiers.py --checkpoint build/checkpoints/qwen3-0.6b --parts bandwidth,turns,crossover,interference

turns         conversations whose prefixes exceed the device's pool: time to the first token and tokens computed again,
              without and with the tier in turns, and with a restart before the last turn
crossover     time to load a prefix or to compute it, by length, measured and from the formula
interference  gaps between the tokens of other requests while a long prefix loads
bandwidth     bytes a second of the tier and of `dd`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.disk import bandwidth, crossover, interference, turns

PARTS = ("bandwidth", "turns", "crossover", "interference")


def main() -> None:
    args = _parser().parse_args()
    options: dict[str, Any] = {"disk_bytes": args.disk_bytes}
    if args.threads is not None:
        options["threads"] = args.threads
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for part in args.parts.split(","):
            print(part, flush=True)
            match part:
                case "bandwidth":
                    found[part] = bandwidth.measure(folder, args.bandwidth_bytes)
                case "turns":
                    work = turns.Workload(args.conversations, args.prefix, args.said, args.turns, args.pool)
                    print(f"  prefixes of {work.excess:.1f} times the pool")
                    found[part] = turns.compare(args.checkpoint, work, folder, args.repeats, **options)
                case "crossover":
                    found[part] = crossover.measure(args.checkpoint, args.lengths, folder, args.repeats, **options)
                case "interference":
                    found[part] = interference.measure(args.checkpoint, args.long, args.streams, folder, **options)
                case _:
                    raise SystemExit(f"--parts must be some of {', '.join(PARTS)}, got {part!r}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path, help="folder of the page files (default: the system's temporary folder)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--disk-bytes", type=int, default=6 << 30)
    parser.add_argument("--bandwidth-bytes", type=int, default=1 << 30)
    parser.add_argument("--conversations", type=int, default=10)
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--said", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pool", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=[32, 256, 1024])
    parser.add_argument("--long", type=int, default=32768)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    main()
