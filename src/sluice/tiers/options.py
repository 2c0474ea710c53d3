"""The flags of `sluice cache`. Loads nothing heavy: `--help` does."""

from __future__ import annotations

import argparse


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="what --kv-disk named")
    parser.add_argument("--verify", action="store_true", help="read every page and compare checksums")
    parser.add_argument("--json", action="store_true", dest="as_json", help="as one JSON object")
