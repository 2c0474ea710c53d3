"""The code that docs/walkthrough.md quotes is the code of the project."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "walkthrough.md"
BLOCK = re.compile(r"^```python file=(?P<file>\S+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_LINES = 300


def blocks() -> list[tuple[str, str]]:
    return [(match["file"], match["code"]) for match in BLOCK.finditer(PAGE.read_text())]


def test_every_quoted_line_is_in_the_file() -> None:
    """A walkthrough through code that has changed misleads its reader. A line `...` stands for lines left out."""
    for file, code in blocks():
        lines = iter((ROOT / file).read_text().splitlines())
        for quoted in code.splitlines():
            is_there = quoted.strip() in ("", "...") or any(line.rstrip() == quoted.rstrip() for line in lines)
            assert is_there, f"{file} has no line {quoted!r} after the ones before"


def test_every_python_block_names_its_file() -> None:
    """A block without a file is not checked."""
    assert PAGE.read_text().count("```python") == len(blocks()) >= 10


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(PAGE.read_text().splitlines()) <= MAX_LINES
