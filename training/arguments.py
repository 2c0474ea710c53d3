"""Types of command-line arguments."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

SHORTEST_TEXT = 80
"""Tokens of a text and the question about it."""


def count(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is another text.
    """
    return _at_least(text, 1)


def length(text: str) -> int:
    """Read a number of tokens into which a text and a question fit.

    Raises:
        argparse.ArgumentTypeError: it is too small, or another text.
    """
    return _at_least(text, SHORTEST_TEXT)


def positive(text: str) -> float:
    """Read a number above 0.

    Raises:
        argparse.ArgumentTypeError: it is another text, or infinite.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def new_file(text: str) -> Path:
    """Read the path of a file that can be written.

    Raises:
        argparse.ArgumentTypeError: its folder does not exist.
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def _at_least(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return int(text)
