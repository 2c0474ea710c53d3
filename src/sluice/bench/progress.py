"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from sluice.bench.driver import NoWatcher, Watcher

REDRAW_SECONDS = 0.5
"""Drawing takes the machine's time from what is measured."""


class _Bar:
    def __init__(self, bar: tqdm[None]) -> None:
        self._bar = bar

    def ended(self) -> None:
        self._bar.update()


@contextmanager
def watching(total: int, label: str) -> Iterator[Watcher]:
    """A watcher that counts up to `total` requests."""
    if not sys.stderr.isatty():
        yield NoWatcher()
        return
    with tqdm(total=total, desc=label, unit="request", mininterval=REDRAW_SECONDS, leave=False) as bar:
        yield _Bar(bar)
