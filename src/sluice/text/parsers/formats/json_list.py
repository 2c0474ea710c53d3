"""Calls as one list of JSON objects behind a tag: those of Phi-4-mini, Granite 3, Nemotron Nano 2 and Apriel.

    functools[{"name": "weather", "arguments": {"city": "Ulm"}}]
    <TOOLCALL>[{"name": "weather", "arguments": {"city": "Ulm"}}]</TOOLCALL>

The other tags are <|tool_call|> of Granite, and <tool_calls> of Apriel. Phi-4-mini's own template has tokens that its
report does not name, <|tool_call|> and <|/tool_call|>.

Sources: Microsoft, "Phi-4-Mini Technical Report", 2025; IBM, the chat template of Granite 3.3; NVIDIA, that of
Nemotron Nano 2; ServiceNow, that of Apriel 1.5, all 2025.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import FENCE, Calls, fence_ahead, read_json_calls, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller, json_list, text_with

ARGUMENTS = ("arguments", "parameters")


class JsonList(Format):
    """
    Args:
        name: by which the format is chosen.
        tags: before the list and behind it, if there is one. All are read, and the first are forced.
    """

    def __init__(self, name: str, *tags: tuple[str, str]) -> None:
        self.name, self._ends = name, dict(tags)
        self._begin, self._end = tags[0]
        self.begins = tuple(self._ends)
        self.markers = tuple(tag for pair in tags for tag in pair if tag)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(begin: str) -> Steps[bool]:
            space = yield from fence_ahead(source)
            is_call = yield from read_json_calls(source, calls, space, ARGUMENTS, ",")
            if is_call:
                yield from skip_texts(source, FENCE, self._ends[begin])
            return is_call

        yield from text_and_calls(source, self.begins, read_call)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return json_list(tools, self._begin, self._end, speller, is_parallel=is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        calls = json_list(tools, self._begin, self._end, speller, is_parallel=is_parallel)
        return text_with([calls], speller.mark(self._begin), is_parallel=False)
