"""The calls of Hermes and Qwen: a JSON object between tags, for each call.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Ulm"}}
    </tool_call>

Source: Nous Research, "Hermes 2 Pro", 2024; Qwen 2.5 and Qwen 3 write the same.
"""

from __future__ import annotations

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import FENCE, Calls, fence_ahead, read_json_calls, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller, json_object

BEGIN, END = "<tool_call>", "</tool_call>"
ARGUMENTS = ("arguments", "parameters")


class Hermes(TaggedFormat):
    name = "hermes"
    begin, begins, markers = BEGIN, (BEGIN,), (BEGIN, END)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            space = yield from fence_ahead(source)
            is_call = yield from read_json_calls(source, calls, space, ARGUMENTS, ",")
            if is_call:
                yield from skip_texts(source, FENCE, END)
            return is_call

        yield from text_and_calls(source, (BEGIN,), read_call)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        return speller.sequence(f"{BEGIN}\n", *json_object(tool, "arguments"), f"\n{END}")
