"""Peers: what an engine tells other engines and routers of its pages, and what it takes from them.

Apart from what loads a model, so that the server, which imports this, loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sluice.engine.messages import AdapterRead, PagesOffered, PagesTaken
from sluice.engine.page_feed import PageListener


@dataclass(frozen=True, slots=True)
class Peers:
    """The ways to others; by default there are none."""

    events: PageListener | None = None
    """Receives what the prefix cache stores and gives up."""
    answer: Callable[[PagesOffered | PagesTaken | AdapterRead], None] | None = None
    """Queues answers to messages about pages and adapters, and returns at once."""
    remote: Path | None = None
    """Folder of the page files of other engines, whose pages this one takes."""


NO_PEERS = Peers()
