"""The calls of DeepSeek, in the form of V3 and R1, and in that of V3.1.

    <|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>weather
    ```json
    {"city": "Ulm"}
    ```<|tool_call_end|><|tool_calls_end|>

    <|tool_calls_begin|><|tool_call_begin|>weather<|tool_sep|>{"city": "Ulm"}<|tool_call_end|><|tool_calls_end|>

The bars of these tokens are full-width ones (U+FF5C), and in the place of underscores they have U+2581.

Source: DeepSeek, the chat templates of DeepSeek-V3-0324 and DeepSeek-V3.1, 2025.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import Calls, read_headed_call, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, several, text_with

ALL_BEGIN, ALL_END = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
BEGIN, SEPARATOR, END = (
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
)
ASSISTANT = "<\uff5cAssistant\uff5c>"
"""Begins the answers of all of these models."""
FENCE, FENCE_END = "```json\n", "```"
_START = rf"(?:\s*{BEGIN})?\s*"


class DeepseekV3(Format):
    name = "deepseek_v3"
    begins = (ALL_BEGIN, BEGIN)
    markers = (ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)
    closing: tuple[str, ...] = (FENCE_END, END, ALL_END)
    separator = "\n"
    """Text between two calls."""
    head = re.compile(rf"{_START}function\s*{SEPARATOR}\s*(?P<name>[\w.-]+)\s*```json\s*")

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            is_call = yield from read_headed_call(source, calls, self.head)
            if is_call:
                yield from skip_texts(source, *self.closing)
            return is_call

        yield from text_and_calls(source, (ALL_BEGIN, BEGIN), read_call)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return self._all(tools, speller, is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        return text_with([self._all(tools, speller, is_parallel)], speller.mark(ALL_BEGIN), is_parallel=False)

    def _all(self, tools: Sequence[ShapedTool], speller: Speller, is_parallel: bool) -> Row:
        one = one_of(self._call(tool, speller) for tool in tools)
        return speller.sequence(ALL_BEGIN, several(one, self.separator, is_parallel=is_parallel), ALL_END)

    def _call(self, tool: ShapedTool, speller: Speller) -> Row:
        begin = f"{BEGIN}function{SEPARATOR}{tool.name}\n{FENCE}"
        return speller.sequence(begin, tool.arguments, f"\n{FENCE_END}{END}")


class DeepseekV31(DeepseekV3):
    name = "deepseek_v31"
    closing = (END, ALL_END)
    separator = ""
    head = re.compile(rf"{_START}(?P<name>[\w.-]+)\s*{SEPARATOR}\s*")

    def _call(self, tool: ShapedTool, speller: Speller) -> Row:
        return speller.sequence(f"{BEGIN}{tool.name}{SEPARATOR}", tool.arguments, END)
