"""The calls of GLM: tags for the name and the value of each argument, on lines of their own in 4.5 and 4.6.

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Ulm</arg_value>
    </tool_call>

    <tool_call>weather<arg_key>city</arg_key><arg_value>Ulm</arg_value></tool_call>

Source: Z.ai, the chat templates of GLM-4.6 and GLM-4.7-Flash, 2025.
"""

from __future__ import annotations

import re

from sluice.text.constraints.shapes import Members
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, text_and_calls
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.formats.tagged_arguments import Tags, read_arguments, read_objects
from sluice.text.parsers.parsing import Source, Steps, size_of
from sluice.text.parsers.shapes import ShapedTool, Speller

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
NAME = re.compile(rf"[^<{{]{{0,{LONGEST_HEAD}}}")
TAGS = Tags(BEGIN, KEY, KEY_END, (VALUE,), VALUE_END, (END,))


class Glm45(TaggedFormat):
    name = "glm45"
    begin, begins, markers = BEGIN, (BEGIN,), (BEGIN, END, KEY, KEY_END, VALUE, VALUE_END)
    line = "\n"
    """What stands between two tags."""

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            if (yield from read_objects(source, calls, END)):
                return True
            at = yield from size_of(source, NAME)
            begun = calls.begin(source.peek()[:at].strip()) if at < source.size else None
            if begun is None:
                return False
            source.take(at)
            yield begun
            yield from read_arguments(source, begun.index, calls.types(begun.name), TAGS)
            return True

        yield from text_and_calls(source, (BEGIN,), read_call)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        key, key_end, value, value_end = map(speller.mark, (KEY, KEY_END, VALUE, VALUE_END))
        middle = (key_end, self.line, value) if self.line else (key_end, value)
        arguments = Members(tool.arguments, (key,), middle, value_end, self.line)
        return speller.sequence(f"{BEGIN}{tool.name}{self.line}", arguments, END)


class Glm47(Glm45):
    name = "glm47"
    line = ""
