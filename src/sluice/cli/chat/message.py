"""What the user entered: a message, which may have several lines, or a command."""

from __future__ import annotations

from typing import NamedTuple

FENCE = '"""'


class Entered(NamedTuple):
    """What the user entered."""

    text: str
    is_command: bool
    """It is one line that begins with a slash."""


def is_unfinished(text: str) -> bool:
    """Return whether a message begins with three double quotes and does not end with three others yet."""
    begun = text.lstrip()
    return begun.startswith(FENCE) and not begun.removeprefix(FENCE).rstrip().endswith(FENCE)


def message_of(text: str) -> Entered:
    """Return what a text means: without the quotes around it, or a command."""
    if text.lstrip().startswith(FENCE):
        inner = text.strip().removeprefix(FENCE).removesuffix(FENCE)
        return Entered(inner.strip("\n"), is_command=False)
    return Entered(text, is_command=text.startswith("/") and "\n" not in text)
