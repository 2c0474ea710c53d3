"""Names of tools that stand in a namespace: templates and models know one flat name for each."""

from __future__ import annotations

SEPARATOR = "__"
"""Between a namespace and a name, as in the names that clients of MCP make."""


def flat_name(namespace: str, name: str) -> str:
    """Return the name of a tool as the model sees it."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name
