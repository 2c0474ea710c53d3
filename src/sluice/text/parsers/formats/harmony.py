"""Answers of gpt-oss (Harmony): messages of several channels, in one answer.

    <|channel|>analysis<|message|>The user asks for the weather.<|end|><|start|>assistant<|channel|>commentary
     to=functions.weather <|constrain|>json<|message|>{"city": "Ulm"}<|call|>

The channel "analysis" is reasoning, a message to a function is a call, and all other messages are text.

Source: OpenAI, "OpenAI Harmony Response Format", 2025.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.constraints.shapes import Shape, TextUntil
from sluice.text.parsers.argument_types import ArgumentTypes
from sluice.text.parsers.calls import FENCE, Calls, fence_ahead, is_cut_head, skip_texts
from sluice.text.parsers.events import ArgumentsDelta, CallBegun, CallEnded, Event, ReasoningDelta, TextDelta
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.json_text import json_events
from sluice.text.parsers.parsing import Source, Steps, comes, place_of, space_ahead, until
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, optional
from sluice.text.parsers.thoughts import Thoughts

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
BEGINS = (START, CHANNEL)
"""What a message may begin with."""
ENDS = (END, CALL, RETURN)
LONGEST_HEADER = 512
HEADER_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
HEADER_FUNCTION = re.compile(r"\bto=(?!(?:user|assistant|all)\b)(?:functions\.)?([\w.-]+)")
RECIPIENT = " to="
"""What a header may begin with behind a prompt that ends with `<|start|>assistant`."""
ANALYSIS, FINAL, COMMENTARY = "analysis", "final", "commentary"
BETWEEN = "\n"
"""Text between two messages."""


class Harmony(Format):
    name = "openai"
    reads_reasoning = True
    after_calls = ""
    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        between, has_begun = "", False
        while True:
            space = yield from space_ahead(source)
            if space == source.size:
                if not has_begun and space:
                    yield TextDelta(source.take())
                return
            has_begun = True
            header = yield from _header(source)
            function = HEADER_FUNCTION.search(header)
            begun = None if function is None else calls.begin(function[1])
            if begun is not None:
                yield from _read_call(source, begun, calls.types(begun.name))
                continue
            channel = HEADER_CHANNEL.search(header)
            if channel is not None and channel[1] == ANALYSIS:
                if function is not None:  # a tool that the model has of itself: nothing of it may be lost
                    yield ReasoningDelta(header)
                yield from _read_message(source, ReasoningDelta)
                continue
            is_message = not header or (header.endswith(MESSAGE) and function is None)
            if not is_message:  # nothing of it may be lost
                yield TextDelta(between + header)
                between = ""
            has_text = yield from _read_message(source, _after(between))
            between = BETWEEN if has_text else between

    def thoughts(self) -> Thoughts:
        return Thoughts(f"{CHANNEL}{ANALYSIS}", (*ENDS, START), None, recur=True)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        # A call ends the answer with a stop token, so there is one.
        return one_of(
            speller.sequence(f"{CHANNEL}{COMMENTARY} to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}", tool.arguments)
            for tool in tools
        )

    def plain_shape(self, answer: Shape, speller: Speller) -> Shape:
        return speller.sequence(f"{CHANNEL}{FINAL}{MESSAGE}", answer)

    def whole_shape(self, answer: Shape, speller: Speller, budget: int | None = None) -> Shape:
        text = TextUntil(speller.mark(END), budget)
        thoughts = speller.sequence(f"{CHANNEL}{ANALYSIS}{MESSAGE}", text, f"{START}assistant")
        return Row((optional(thoughts), answer))


def _after(between: str) -> Callable[[str], Event]:
    """Return what makes events of a text: the first begins with what separates it from the text before."""
    rest = [between]

    def event(text: str) -> Event:
        return TextDelta((rest.pop() if rest else "") + text)

    return event


def _header(source: Source) -> Steps[str]:
    """Read the header of a message, if one comes next, and return it; else the first character, if it is no header's.

    An empty text says that a message without header comes next.
    """
    begins = False
    for begin in (*BEGINS, RECIPIENT):
        begins = begins or (yield from comes(source, begin))
    if not begins:
        return ""
    at = yield from place_of(source, MESSAGE, LONGEST_HEADER)
    if at < 0 and is_cut_head(source):
        source.take()
        return ""
    return source.take(at + len(MESSAGE) if at >= 0 else 1)


def _read_message(source: Source, event: Callable[[str], Event]) -> Steps[bool]:
    """Read the content of a message, and its end. Returns whether there was some."""
    found = yield from until(source, (*ENDS, *BEGINS), event)
    if found.marker in BEGINS:
        source.put_back(found.marker)
    elif not found.marker and found.space:
        yield event(found.space)
    return found.has_text


def _read_call(source: Source, begun: CallBegun, types: ArgumentTypes) -> Steps[None]:
    yield begun
    event = partial(ArgumentsDelta, begun.index)
    source.take((yield from fence_ahead(source)))
    for end in (*ENDS, *BEGINS):
        if (yield from comes(source, end)):
            source.take(len(end) if end in ENDS else 0)
            yield event("{}")
            yield CallEnded(begun.index, True)
            return
    if not source.size and not source.was_cut and not types.names:  # what ended the answer ends the call, too
        yield event("{}")
        yield CallEnded(begun.index, True)
        return
    read = yield from json_events(source, event, types)
    if read.is_closed:
        yield CallEnded(begun.index, read.is_valid)
        yield from skip_texts(source, "}", FENCE)
    found = yield from until(source, (*ENDS, *BEGINS), TextDelta if read.is_closed else event)
    if found.marker in BEGINS:
        source.put_back(found.marker)
    if not read.is_closed:
        yield CallEnded(begun.index, False)
