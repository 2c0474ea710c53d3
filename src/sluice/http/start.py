"""The start of `sluice serve`: the engine's process begins to import torch while the server imports its own modules.

So this module imports little itself: it is the first that the command line imports.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sluice.process.early import EarlyEngine

if TYPE_CHECKING:
    from sluice.config import EngineConfig, ServerConfig

__all__ = ["EarlyEngine", "early_engine", "start_serving"]
HELP = frozenset(("-h", "--help"))


def early_engine(arguments: Collection[str]) -> EarlyEngine | None:
    """Start the process of the first engine if a command line is one of `sluice serve`. The caller must close it."""
    return EarlyEngine.start() if next(iter(arguments), None) == "serve" and HELP.isdisjoint(arguments) else None


def start_serving(
    server: ServerConfig, engine: EngineConfig, given: Collection[str], early: EarlyEngine | None = None
) -> int:
    """Serve until a signal comes, as `serve.run`. Returns the exit status."""
    from sluice.assembly.ranks import layout_of

    if early is not None and layout_of(engine.parallel).size > 1:
        early.close()  # several ranks are started by the first one, before it imports torch
    from sluice.http.serve import run

    return run(server, engine, given=given, early=early)
