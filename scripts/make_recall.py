"""Write a checkpoint that recalls exactly: greedy decoding repeats what followed the last tokens before.

    python scripts/make_recall.py --out FOLDER [--size small|middle|gqa] [--previous N] [--max-positions N]

It is constructed, not trained (`benchmarks.exact_recall`): for tests of long contexts whose answers are known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.exact_recall import SHAPES, ShapeError, write_recall_checkpoint


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--size", default="small", choices=SHAPES)
    parser.add_argument("--previous", type=int, metavar="N", help="tokens of the key (default: the most of the size)")
    parser.add_argument("--max-positions", type=int, metavar="N", help="longest context (default: 1048576)")
    args = parser.parse_args(arguments)
    given = {"previous": args.previous, "max_positions": args.max_positions}
    try:
        shape = replace(SHAPES[args.size], **{name: value for name, value in given.items() if value is not None})
        write_recall_checkpoint(args.out, shape)
    except (ShapeError, OSError) as error:
        print(f"make_recall: error: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {args.size}, key of {shape.previous} tokens, {shape.max_positions:,} positions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
