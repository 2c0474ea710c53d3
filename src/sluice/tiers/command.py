"""`sluice cache inspect`: from the command line to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sluice.tiers.inspect import inspect, report


def run_inspect(given: dict[str, Any]) -> int:
    """Show what a page file holds. Returns the exit status: 1 if a page is damaged.

    Args:
        given: the flags that were given, by name.

    Raises:
        PageFileError: it cannot be read, or is no page file.
    """
    found = inspect(Path(given["path"]), verify=given.get("verify", False))
    print(json.dumps(found.as_json(), indent=2) if given.get("as_json", False) else report(found))
    return 1 if found.damaged else 0
