"""The command line. `main` runs a command, `build_parser` makes the parser of all of them."""

from sluice.cli.program import build_parser, main

__all__ = ["build_parser", "main"]
