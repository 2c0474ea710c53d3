"""The start of `sluice serve`: the engine's process begins to import torch while the server imports its own modules."""

from __future__ import annotations

from collections.abc import Collection

from sluice.assembly.ranks import layout_of
from sluice.config import EngineConfig, ServerConfig
from sluice.process.early import EarlyEngine


def start_serving(server: ServerConfig, engine: EngineConfig, given: Collection[str]) -> int:
    """Serve until a signal comes, as `serve.run`. Returns the exit status."""
    # Several ranks are started by the first one, before it imports torch.
    early = EarlyEngine.start() if layout_of(engine.parallel).size == 1 else None
    try:
        from sluice.http.serve import run

        return run(server, engine, given=given, early=early)
    finally:
        if early is not None:
            early.close()
