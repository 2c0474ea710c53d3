"""Other distributions with a package `sluice`: whichever was installed last has overwritten files of the other.

A module of its own beside the package, so that it is there even if the package is another project's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

DISTRIBUTION = "sluice-llm"
PACKAGE = "sluice/__init__.py"
ALONE = "install sluice-llm in an environment of its own"


def namesakes(installed: Iterable[Distribution] | None = None) -> list[str]:
    """Return the other distributions with a package `sluice`, each with its version.

    Args:
        installed: the distributions to look at; None: all that are installed.
    """
    found = set()
    for each in distributions() if installed is None else installed:
        name = each.metadata["Name"] if _has_package(each) else None
        if name is not None and re.sub(r"[-_.]+", "-", name).lower() != DISTRIBUTION:
            found.add(f"{name} {each.version}")
    return sorted(found)


def warning() -> str | None:
    """Return a line for the user if another distribution has a package `sluice`, else None."""
    others = namesakes()
    if not others:
        return None
    return (
        f"sluice: warning: {', '.join(others)} has a package `sluice`, too. What was installed last has overwritten"
        f" files of the other: {ALONE}"
    )


def _has_package(distribution: Distribution) -> bool:
    """Return whether a distribution has installed the package, by its list of files, which is not parsed as it may be
    long."""
    return f"\n{PACKAGE}," in "\n" + (distribution.read_text("RECORD") or "")
