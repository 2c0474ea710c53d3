"""Streamed chats that a test writes: handlers for `sse_server`, and a source without a model."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from sluice.cli.chat.answers import AnswerPart, Messages
from sluice.cli.chat.conversation import ChatHistory
from sluice.cli.chat.screen import Screen
from sluice.cli.chat.stopping import Stopper
from sse_server import Call


async def say(call: Call, text: str, *, finish: str | None = None, **delta: str) -> None:
    """Send one piece of a streamed chat."""
    await call.event({"choices": [{"index": 0, "delta": {"content": text, **delta}, "finish_reason": finish}]})


async def echo(call: Call) -> None:
    """Answer with the last message; one that asks to go on is never ended by the server."""
    await call.head()
    said = call.body["messages"][-1]["content"]
    await say(call, f"You said <{said}>")
    if "go on" in said:
        await asyncio.Event().wait()
    await say(call, ".", finish="stop")
    await call.end(completion_tokens=6)


@dataclass
class FakeSource:
    """Answers with given parts, and keeps what it was asked."""

    answers: list[Sequence[AnswerPart | Exception]]
    asked: list[Messages] = field(default_factory=list)
    model: str = "toy"
    where: str = "nowhere"

    def answer(self, messages: Messages, stopper: Stopper) -> Generator[AnswerPart, None, None]:
        self.asked.append(messages)
        for part in self.answers.pop(0):
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self) -> None:
        pass


def conversation(*answers: Sequence[AnswerPart | Exception], terminal: bool = True) -> tuple[ChatHistory, FakeSource]:
    """A conversation whose screen is a `StringIO`."""
    source = FakeSource(list(answers))
    return ChatHistory(source, Screen(io.StringIO(), terminal)), source
