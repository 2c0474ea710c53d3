"""Models' names, of which Ollama's clients send each with a tag: `name` is short for `name:latest`."""

from __future__ import annotations

LATEST = ":latest"


def with_tag(name: str) -> str:
    """Return a model's name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST
