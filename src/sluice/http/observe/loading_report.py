"""LoadingReport: says on standard error how far the model of a server is loaded."""

from __future__ import annotations

import logging
from typing import TextIO

from sluice.engine.heartbeat import LoadingPart
from sluice.process.engine_state import Loading

LOGGER = logging.getLogger("sluice.server")
SECONDS = 5.0
"""Seconds before the first line and between two lines: a start that takes a second needs none."""
ERASE = "\r\x1b[K"
HIDDEN = (LoadingPart.FILES,)
"""Parts in which others draw bars: those of downloads."""


class LoadingReport:
    """Writes one line that changes to a terminal, and a line now and then to anything else.

    Args:
        output: standard error; None: what there is to say is logged, at the level info.
    """

    def __init__(self, output: TextIO | None) -> None:
        self._output = output
        self._is_terminal = output is not None and output.isatty()
        self._is_drawn = False
        self._next = SECONDS

    def show(self, loading: Loading) -> None:
        """Receive how far the engine is loaded."""
        if self._output is not None and self._is_terminal:
            if loading.reading.part in HIDDEN:
                self.close()
                return
            self._output.write(f"{ERASE}loading the model: {loading}")
            self._output.flush()
            self._is_drawn = True
        elif loading.seconds >= self._next:
            self._next = loading.seconds + SECONDS
            if self._output is None:
                LOGGER.info("loading the model: %s", loading)
            else:
                print(f"sluice: loading the model: {loading}", file=self._output, flush=True)

    def close(self) -> None:
        """Erase the line that changes."""
        if self._output is not None and self._is_drawn:
            self._output.write(ERASE)
            self._output.flush()
            self._is_drawn = False
