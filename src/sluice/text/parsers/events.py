"""What an answer consists of, as small events in the order in which they were generated.

They belong to no API. An answer that is sent whole is the sum of the same events (`whole_of`), so it never differs from
one that was streamed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls a tool. Its arguments follow, and no other call begins before it has ended."""

    index: int
    """Number of the call in the answer, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of a call's arguments, as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments of a call are complete, or will get no further."""

    index: int
    is_complete: bool
    """False: the answer ended, or its JSON went wrong, within the arguments."""


Event = TextDelta | ReasoningDelta | CallBegun | ArgumentsDelta | CallEnded


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: str
    """JSON text."""
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def whole_of(events: Iterable[Event]) -> Reply:
    """Return the answer that some events are, all of them or those so far."""
    text, reasoning = [], []
    begun: list[CallBegun] = []
    arguments: dict[int, list[str]] = {}
    complete: set[int] = set()
    for event in events:
        match event:
            case TextDelta():
                text.append(event.text)
            case ReasoningDelta():
                reasoning.append(event.text)
            case CallBegun():
                begun.append(event)
                arguments[event.index] = []
            case ArgumentsDelta():
                arguments[event.index].append(event.text)
            case CallEnded() if event.is_complete:
                complete.add(event.index)
    calls = (Call(call.id, call.name, "".join(arguments[call.index]), call.index in complete) for call in begun)
    return Reply("".join(text), "".join(reasoning), tuple(calls))


def merged(events: Iterable[Event]) -> list[Event]:
    """Return events in which no two deltas of the same kind and call follow each other."""
    found: list[Event] = []
    for event in events:
        match (found[-1] if found else None), event:
            case TextDelta(before), TextDelta(text):
                found[-1] = TextDelta(before + text)
            case ReasoningDelta(before), ReasoningDelta(text):
                found[-1] = ReasoningDelta(before + text)
            case ArgumentsDelta(index, before), ArgumentsDelta(_, text):
                found[-1] = ArgumentsDelta(index, before + text)
            case _:
                found.append(event)
    return found
