"""Models' names in Ollama's API, where each has a tag: `name` is short for `name:latest`."""

from __future__ import annotations

from sluice.http.base.backend import Service

LATEST = ":latest"


def with_tag(name: str) -> str:
    """Return a model's name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def served_name(service: Service, name: str) -> str:
    """Return the name under which a model is served that a client calls by this name, with or without its tag.

    Raises:
        ApiError: 404, it is another model.
    """
    found = next((own for own in service.models if with_tag(own) == with_tag(name)), name)
    service.check_model(found)
    return found
