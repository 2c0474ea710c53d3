"""The calls of Llama 3.1 and later: an answer that is a JSON object, or that has one behind a tag.

    <|python_tag|>{"name": "weather", "parameters": {"city": "Ulm"}}

The models leave the tag out more often than not. Several calls have a semicolon between each two. A prompt may ask for
a tag with the name instead, and Functionary 3.1 writes it:

    <function=weather>{"city": "Ulm"}</function>

Source: Meta, "Llama 3.1 model cards and prompt formats", 2024; MeetKai, the chat template of Functionary medium 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import (
    JSON_BEGIN,
    Calls,
    is_cut_json,
    read_headed_call,
    read_json_calls,
    skip_texts,
    text_and_calls,
)
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.parsing import Source, Steps, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller, json_object, one_of, several

TAG, SEPARATOR = "<|python_tag|>", ";"
FUNCTION, FUNCTION_END = "<function=", "</function>"
HEAD = re.compile(r"(?P<name>[\w.-]+)>\s*")
ARGUMENTS = ("parameters", "arguments")


class Llama3(Format):
    name = "llama3_json"
    begins, markers = (TAG, JSON_BEGIN, FUNCTION), (TAG,)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(marker: str) -> Steps[bool]:
            if marker == FUNCTION:
                is_call = yield from read_headed_call(source, calls, HEAD, (FUNCTION_END,))
                yield from skip_texts(source, FUNCTION_END if is_call else "")
                return is_call
            space = yield from space_ahead(source)
            return (yield from read_json_calls(source, calls, space, ARGUMENTS, f"{SEPARATOR},"))

        has_called = yield from read_call("")
        if not has_called and is_cut_json(source):
            source.take()
        yield from text_and_calls(source, (TAG, FUNCTION), read_call, after_call=has_called)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        calls = (speller.sequence(*json_object(tool, "parameters")) for tool in tools)
        return several(one_of(calls), f"{SEPARATOR} ", is_parallel=is_parallel)
