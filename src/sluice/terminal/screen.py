"""Writes answers: as they are into a file or a pipe, and without commands to the terminal onto a terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TextIO

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that move a cursor, change colours or rename windows. A model must not."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def harmless(text: str) -> str:
    """Return a text with every control character but tabs and line ends replaced."""
    return CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


@dataclass(slots=True)
class Screen:
    """Where the conversation is shown."""

    out: TextIO
    is_terminal: bool
    is_dim: bool = False

    def write(self, text: str) -> None:
        """Show a piece of an answer."""
        self._set_dim(False)
        self._put(text)

    def think(self, text: str) -> None:
        """Show a piece of what the model thinks; on a terminal alone, as a pipe wants the answer."""
        if self.is_terminal:
            self._set_dim(True)
            self._put(text)

    def end(self) -> None:
        """End an answer."""
        self._set_dim(False)
        self.out.write("\n")
        self.out.flush()

    def note(self, text: str) -> None:
        """Tell the user something, in lines of their own; on a terminal alone."""
        if self.is_terminal:
            lines = "\n".join(f"{DIM}{line}{PLAIN}" if line else "" for line in harmless(text).split("\n"))
            self.out.write(f"{lines}\n")
            self.out.flush()

    def _set_dim(self, is_dim: bool) -> None:
        if self.is_terminal and is_dim != self.is_dim:
            if self.is_dim:
                self.out.write(f"{PLAIN}\n\n")
            else:
                self.out.write(DIM)
        self.is_dim = is_dim and self.is_terminal

    def _put(self, text: str) -> None:
        if text:
            self.out.write(harmless(text) if self.is_terminal else text)
            self.out.flush()
