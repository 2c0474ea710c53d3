"""The calls of Kimi K2.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Ulm"}
    <|tool_call_end|><|tool_calls_section_end|>

All on one line. The number counts the calls of a conversation.

Source: Moonshot AI, the chat template of Kimi-K2-Instruct, 2025.
"""

from __future__ import annotations

import re

from sluice.text.constraints.shapes import Regex
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.formats.base import SectionFormat
from sluice.text.parsers.shapes import ShapedTool, Speller

ALL_BEGIN, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class KimiK2(SectionFormat):
    name = "kimi_k2"
    all_begin, all_end, call_begin = ALL_BEGIN, ALL_END, BEGIN
    begins = (ALL_BEGIN, BEGIN)
    markers = (ALL_BEGIN, ALL_END, BEGIN, ARGUMENTS, END)
    closing = (END, ALL_END)
    head = re.compile(
        rf"(?:\s*{re.escape(BEGIN)})?\s*(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?\s*{re.escape(ARGUMENTS)}\s*"
    )

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        number = Regex("[0-9]{1,4}")
        return speller.sequence(f"{BEGIN}functions.{tool.name}:", number, ARGUMENTS, tool.arguments, END)
