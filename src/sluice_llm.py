"""The command `sluice-llm`: `sluice`, after a check that the package of that name is the one of `sluice-llm`.

Other projects on the package index have a package or a command `sluice`, too, and whichever was installed last has
overwritten files of the other. This module has a name of its own, so that it is there to say so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

DISTRIBUTION = "sluice-llm"
PACKAGE = "sluice/__init__.py"
ALONE = "install sluice-llm in an environment of its own"


def main() -> int:
    """Run the command line. Returns the exit status: 1 if the package is not that of `sluice-llm`."""
    try:
        from sluice.cli import main as run
        from sluice.version import DISTRIBUTION as ours
    except ImportError as error:
        others = ", ".join(namesakes()) or "an unknown distribution"
        print(f"sluice-llm: error: the package `sluice` here is of {others} ({error}): {ALONE}", file=sys.stderr)
        return 1
    assert ours == DISTRIBUTION
    return run()


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


if __name__ == "__main__":
    sys.exit(main())
