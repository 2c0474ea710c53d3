"""The name under which a model is served that a client of Ollama's API calls by a name."""

from __future__ import annotations

from sluice.http.base.backend import Service
from sluice.http.base.model_names import is_same


def served_name(service: Service, name: str) -> str:
    """Return the name under which a model is served that a client calls by this name, with or without its tag.

    Raises:
        ApiError: 404, it is another model.
    """
    found = next((own for own in (*service.models, *service.adapters) if is_same(name, own)), name)
    service.check_model(found)
    return found
