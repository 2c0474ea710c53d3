"""What an answer consists of while it streams, and what a source of answers does."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sluice.cli.chat.stopping import Stopper

Messages = Sequence[Mapping[str, str]]
STOPPED = "stopped"
"""Finish reason of an answer that the user stopped."""


class AnswerError(RuntimeError):
    """There is no answer, or only a part of one. The message says why, in one line."""


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Tokens of one answer."""

    prompt_tokens: int
    """Tokens of the whole conversation, as the chat template writes it."""
    cached_tokens: int
    """Tokens of the prompt whose KV was there already."""
    completion_tokens: int


class AnswerPart(NamedTuple):
    """A piece of an answer. The last one says how it ended, and what it took if the source knows."""

    text: str = ""
    reasoning: str = ""
    """What the model thinks before it answers, where the source tells that from text."""
    usage: AnswerUsage | None = None
    finish_reason: str | None = None


class AnswerSource(Protocol):
    """Answers conversations."""

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    @property
    def where(self) -> str:
        """Where it runs, in words."""
        ...

    def answer(self, messages: Messages, stopper: Stopper) -> Generator[AnswerPart, None, None]:
        """Answer a conversation, and yield the parts as they come, until the end or until the stopper is asked.

        Raises:
            AnswerError: it is refused, or breaks off.
        """
        ...

    def close(self) -> None: ...
