"""Reads messages from a terminal: lines with editing and history, and messages of several lines.

Python's `readline` does the editing, where it is there. A paste of several lines stays one message with GNU readline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PROMPT, MORE = ">>> ", "... "
FENCE = '"""'
MOST_KEPT = 1000
"""Messages in the file of the history."""


class Entered(NamedTuple):
    """What the user entered."""

    text: str
    is_command: bool
    """It is one line that begins with a slash."""


def read_message(read: Callable[[str], str]) -> Entered:
    """Read one message.

    A line that ends with a backslash goes on in the next one. A message that begins with three double quotes ends with
    three.

    Args:
        read: shows a prompt and returns a line, as `input` does.

    Raises:
        EOFError, KeyboardInterrupt: as `read` raises them.
    """
    line = read(PROMPT)
    if line.lstrip().startswith(FENCE):
        return Entered(_fenced(line.lstrip().removeprefix(FENCE), read), is_command=False)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read(MORE))
    text = "\n".join(lines)
    return Entered(text, is_command=text.startswith("/") and "\n" not in text)


def _fenced(line: str, read: Callable[[str], str]) -> str:
    lines = [line]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(read(MORE))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")


class History:
    """Messages of earlier conversations, which the arrow keys bring back. Each is a line of JSON in a file.

    Args:
        path: the file; None: messages are kept until the program ends.
    """

    def __init__(self, path: Path | None, commands: Sequence[str]) -> None:
        self._path = path
        self._readline = _readline(commands)
        self._kept: list[str] = []
        if path is not None:
            with suppress(OSError, UnicodeDecodeError):
                lines = path.read_text(encoding="utf-8").splitlines()
                self._kept = [text for line in lines if (text := _text_of(line))]
        for text in self._kept if self._readline is not None else ():
            self._readline.add_history(text)

    def add(self, text: str) -> None:
        """Keep a message, unless it is the one before."""
        if self._kept and self._kept[-1] == text:
            return
        self._kept.append(text)
        if self._readline is not None:
            self._readline.add_history(text)

    def save(self) -> str | None:
        """Write the file, for its owner alone. Returns why it cannot be written, None if it was."""
        if self._path is None:
            return None
        content = "".join(json.dumps(text) + "\n" for text in self._kept[-MOST_KEPT:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            self._path.write_text(content, encoding="utf-8")
        except OSError as error:
            return f"the history cannot be written to {self._path}: {error.strerror}"
        return None


def _text_of(line: str) -> str:
    with suppress(ValueError):
        text = json.loads(line)
        if isinstance(text, str):
            return text
    return ""


def _readline(commands: Sequence[str]) -> Any:
    """Return the module `readline`, set up; None where Python has none."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)  # `History` keeps whole messages, not lines
    readline.set_completer(_completer(commands))
    readline.set_completer_delims(" ")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    return readline


def _completer(commands: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        found = [name for name in commands if text.startswith("/") and name.startswith(text)]
        return found[state] if state < len(found) else None

    return complete
