"""The command line. `main` runs a command, `build_parser` makes the parser of all of them.

Both import the commands when they are called: an engine starts before, as it takes longer to import what it needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sluice.http.start import early_engine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status.

    Args:
        arguments: of the command; None: those of this process.
    """
    early = early_engine(sys.argv[1:]) if arguments is None else None
    try:
        from sluice.cli.program import main as run

        return run(arguments, early)
    finally:
        if early is not None:
            early.close()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. The values of options that were not given are absent from the result."""
    from sluice.cli.program import build_parser as build

    return build()
