"""The command `sluice-llm`: `sluice`, after a check that the package of that name is the one of `sluice-llm`.

Other projects on the package index have a package or a command `sluice`, too. This module has a name of its own, so
that it is there to say so.
"""

from __future__ import annotations

import sys

from sluice_namesakes import ALONE, DISTRIBUTION, namesakes


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


if __name__ == "__main__":
    sys.exit(main())
