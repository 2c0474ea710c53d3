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

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.formats.base import SectionFormat
from sluice.text.parsers.shapes import ShapedTool, Speller

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


class DeepseekV3(SectionFormat):
    name = "deepseek_v3"
    all_begin, all_end, call_begin = ALL_BEGIN, ALL_END, BEGIN
    begins = (ALL_BEGIN, BEGIN)
    markers = (ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)
    closing: tuple[str, ...] = (FENCE_END, END, ALL_END)
    separator = "\n"
    head = re.compile(rf"{_START}function\s*{SEPARATOR}\s*(?P<name>[\w.-]+)\s*```json\s*")

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        begin = f"{BEGIN}function{SEPARATOR}{tool.name}\n{FENCE}"
        return speller.sequence(begin, tool.arguments, f"\n{FENCE_END}{END}")


class DeepseekV31(DeepseekV3):
    name = "deepseek_v31"
    closing = (END, ALL_END)
    separator = ""
    head = re.compile(rf"{_START}(?:function\s*{SEPARATOR}\s*)?(?P<name>[\w.-]+)\s*(?:{SEPARATOR})?\s*")
    """It reads the form of V3, too, whose fence is one around the arguments here."""

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        return speller.sequence(f"{BEGIN}{tool.name}{SEPARATOR}", tool.arguments, END)
