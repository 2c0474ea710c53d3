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
    """Where answers are shown. A terminal gets no control characters of a model."""

    out: TextIO
    is_conversation: bool
    """Whether notes and thoughts are shown; otherwise answers alone."""
    is_dim: bool = False

    def write(self, text: str) -> None:
        """Show a piece of an answer."""
        self._set_dim(False)
        self._put(text)

    def think(self, text: str) -> None:
        """Show a piece of what the model thinks, in a conversation; one message from a pipe wants the answer alone."""
        if self.is_conversation:
            self._set_dim(True)
            self._put(text)

    def end(self) -> None:
        """End an answer."""
        self._set_dim(False)
        self.out.write("\n")
        self.out.flush()

    def note(self, text: str) -> None:
        """Tell the user something, in lines of their own, in a conversation."""
        if self.is_conversation:
            lines = "\n".join(f"{DIM}{line}{PLAIN}" if line else "" for line in harmless(text).split("\n"))
            self.out.write(f"{lines}\n")
            self.out.flush()

    def _set_dim(self, is_dim: bool) -> None:
        if self.is_conversation and is_dim != self.is_dim:
            if self.is_dim:
                self.out.write(f"{PLAIN}\n\n")
            else:
                self.out.write(DIM)
        self.is_dim = is_dim and self.is_conversation

    def _put(self, text: str) -> None:
        if text:
            self.out.write(harmless(text) if self.is_conversation or self.out.isatty() else text)
            self.out.flush()
