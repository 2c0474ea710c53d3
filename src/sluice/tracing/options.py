"""The flags of `sluice trace` and `sluice replay`. Loads nothing heavy: `--help` does."""

from __future__ import annotations

import argparse

GAP_MS = 100.0


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what --trace wrote")
    parser.add_argument(
        "--gap-ms", type=float, metavar="X", help=f"tell gaps between tokens longer than this (default: {GAP_MS:g})"
    )
    parser.add_argument("--requests", action="store_true", help="a line for each request")
    parser.add_argument("--json", action="store_true", dest="as_json", help="all of it as one JSON object")
    parser.add_argument("--perfetto", metavar="OUT", help="write a timeline too, for https://ui.perfetto.dev")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what --trace wrote")
