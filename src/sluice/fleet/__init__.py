"""A fleet: replicas of a server on Ray Serve, and an ingress that sends each request to where its prefix is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def build_app(args: Mapping[str, Any]) -> Any:
    """Return the application for `serve run sluice.fleet:build_app` (`app.build_app`)."""
    from sluice.fleet import app

    return app.build_app(args)
