"""Reads messages from a terminal with prompt_toolkit: editing, pasted lines as one message, and a history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession, history
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from sluice.cli.chat.message import is_unfinished

PROMPT, MORE = ">>> ", "... "
MOST_KEPT = 1000
"""Messages in the file of the history."""


class History(history.History):
    """Messages of earlier conversations, which the arrow keys bring back. Each is a line of JSON in a file.

    Args:
        path: the file; None: messages are kept until the program ends.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path
        self._kept: list[str] = []
        if path is not None:
            with suppress(OSError, UnicodeDecodeError):
                lines = path.read_text(encoding="utf-8").splitlines()
                self._kept = [text for line in lines if (text := _text_of(line))]

    def load_history_strings(self) -> Iterable[str]:
        return self._kept[::-1]

    def store_string(self, string: str) -> None:
        self._kept.append(string)

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


def reader(kept: History, commands: Sequence[str]) -> Callable[[], str]:
    """Return what shows a prompt and returns a message, or raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C.

    Args:
        commands: what Tab completes.
    """
    keys = KeyBindings()

    @keys.add("enter", filter=Condition(lambda: get_app().current_buffer.document.text_before_cursor.endswith("\\")))
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.delete_before_cursor()
        event.current_buffer.newline(copy_margin=False)

    session: PromptSession[str] = PromptSession(
        PROMPT,
        history=kept,
        multiline=Condition(lambda: is_unfinished(get_app().current_buffer.text)),
        prompt_continuation=MORE,
        key_bindings=keys,
        completer=WordCompleter(commands, sentence=True),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        reserve_space_for_menu=0,
    )
    return session.prompt
