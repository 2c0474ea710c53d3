"""`sluice cache inspect`: show what a page file holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `sluice cache inspect`."""
    parser.add_argument("path", metavar="PATH", help="the file of --kv-disk")
    parser.add_argument("--verify", action="store_true", help="read every page and compare its checksum")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")


def run_inspect(given: dict[str, Any]) -> int:
    """Show what a page file holds. Return the exit status: 1 if a page is damaged.

    Args:
        given: the flags that were given, by name.

    Raises:
        PageFileError: it cannot be read, or is no page file.
    """
    from sluice.storage.inspect import inspect, report

    found = inspect(Path(given["path"]), verify=given.get("verify", False))
    print(json.dumps(found.as_json(), indent=2) if given.get("as_json", False) else report(found))
    return 1 if found.damaged else 0
