"""Answers of gpt-oss: channels, recipients and calls in one format."""

from __future__ import annotations

import itertools

import pytest

from sluice.text.parsers.events import Call, Reply, whole_of
from sluice.text.parsers.formats import FORMATS
from sluice.text.parsers.replies import ReplyFormat
from sluice.text.parsers.tools import Tool, ToolUse

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USE = ToolUse((Tool("weather", parameters=SCHEMA), Tool("now")))


def read(text: str) -> Reply:
    """What an answer is, whole and character by character."""
    found = []
    for cuts in ([0, len(text)], [*range(len(text) + 1)]):
        parser = ReplyFormat(FORMATS["openai"]).parser(USE, new_id=lambda: "id0")
        events = [event for begin, end in itertools.pairwise(cuts) for event in parser.push(text[begin:end])]
        found.append(whole_of([*events, *parser.finish()]))
    assert found[0] == found[1]
    return found[0]


def test_harmony_tells_channels_apart() -> None:
    """Reasoning of gpt-oss would be read out as the answer."""
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Good day. "
    assert read(text) == Reply("Good day. ", "Hm.")
    two = "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Second."
    assert read(two).text == "First.\nSecond."


ULM = '{"city": "Ulm"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ULM}<|call|>",
            Reply("I look.", "Hm.", (Call("id0", "weather", ULM),)),
        ),
        (
            f" to=functions.weather<|channel|>commentary json<|message|>{ULM}",
            Reply(calls=(Call("id0", "weather", ULM),)),
        ),
        (f"<|channel|>analysis to=weather<|message|>{ULM}<|call|>", Reply(calls=(Call("id0", "weather", ULM),))),
        ("<|channel|>commentary to=functions.now<|message|><|call|>", Reply(calls=(Call("id0", "now", "{}"),))),
        (
            "<|channel|>analysis to=browser.find code<|message|>{}<|call|>",
            Reply("", "<|channel|>analysis to=browser.find code<|message|>{}"),
        ),
        ("<|channel|>commentary to=user<|message|>I look.<|end|>", Reply("I look.")),
    ],
)
def test_harmony_tells_recipients_apart(text: str, expected: Reply) -> None:
    """Preambles are text for the user; a call is one in every channel, and a call of no offered tool is none."""
    assert read(text) == expected
