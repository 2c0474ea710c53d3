"""Values of clients as messages repeat them: a refusal must not take longer than what it refuses."""

from __future__ import annotations

LONGEST_SHOWN, MOST_SHOWN = 200, 50
"""Characters of a text, and items of a list, that a message repeats."""


def clipped(text: str, length: int = LONGEST_SHOWN) -> str:
    """Return a text, or the beginning and the end of a long one."""
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 4 :]}"


def shown(value: object) -> str:
    """Return what `repr` does of a value. Long texts and lists are cut before: to quote a text takes 10 ms a megabyte,
    in which no other thread runs."""
    if isinstance(value, str):
        return repr(clipped(value))
    if isinstance(value, list | tuple) and len(value) > MOST_SHOWN:
        return f"{value[:MOST_SHOWN]!r} and {len(value) - MOST_SHOWN} more"
    return repr(value)
