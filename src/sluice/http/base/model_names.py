"""Models' names, of which Ollama's clients send each with a tag: `name` is short for `name:latest`."""

from __future__ import annotations

LATEST = ":latest"


def with_tag(name: str) -> str:
    """Return a model's name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def is_same(name: str, own: str) -> bool:
    """Return whether a client's name of a model is one of ours, with or without its tag. Both may be of any length."""
    return len(name) <= len(own) + len(LATEST) and with_tag(name) == with_tag(own)
