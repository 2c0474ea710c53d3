"""The calls of MiniMax M2 and of DeepSeek V3.2 and V4: all in one section, with tags for each call and each argument.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Ulm</parameter>
    </invoke>
    </minimax:tool_call>

DeepSeek's tags begin with a token of its own, and say of each argument whether it is a text: `string="true"`.

Sources: MiniMax, the chat template of MiniMax-M2; DeepSeek, those of V3.2 and V4, 2025 and 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.text.constraints.shapes import Mark, Members, Regex, Shape
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import Calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.formats.tagged_arguments import Head, Tags, read_invoked
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, several, text_with

MINIMAX = "<minimax:tool_call>", "</minimax:tool_call>"
DSML = "\uff5cDSML\uff5c"
V32 = f"<{DSML}function_calls>", f"</{DSML}function_calls>"
V4 = f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"


class MinimaxM2(Format):
    name = "minimax_m2"
    begin, end = MINIMAX
    invoke, invoke_end = '<invoke name="', "</invoke>"
    begins, markers = (begin, invoke), MINIMAX
    tags = Tags(invoke, '<parameter name="', '">', (), "</parameter>", (invoke_end, end))
    middle: tuple[Mark | Regex, ...] = ('">',)
    """What stands between the name and the value of an argument."""

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        return read_invoked(source, calls, Head(self.begin, self.invoke, '">', self.end), self.tags)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return self._all(tools, speller, is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        return text_with([self._all(tools, speller, is_parallel)], speller.mark(self.begin), is_parallel=False)

    def _all(self, tools: Sequence[ShapedTool], speller: Speller, is_parallel: bool) -> Row:
        one = one_of(self._call(tool, speller) for tool in tools)
        return speller.sequence(f"{self.begin}\n", several(one, "\n", is_parallel=is_parallel), f"\n{self.end}")

    def _call(self, tool: ShapedTool, speller: Speller) -> Row:
        arguments = Members(tool.arguments, (self.tags.name,), self.middle, f"{self.tags.value_end}\n")
        return speller.sequence(f'{self.invoke}{tool.name}">\n', arguments, self.invoke_end)


class DeepseekV32(MinimaxM2):
    name = "deepseek_v32"
    begin, end = V32
    invoke, invoke_end = f'<{DSML}invoke name="', f"</{DSML}invoke>"
    begins, markers = (begin, invoke), V32
    tags = Tags(
        invoke,
        f'<{DSML}parameter name="',
        '"',
        ('string="true">', 'string="false">', ">"),
        f"</{DSML}parameter>",
        (invoke_end, end),
    )
    middle = ('" string="', Regex("true|false"), '">')


class DeepseekV4(DeepseekV32):
    name = "deepseek_v4"
    begin, end = V4
    begins, markers = (begin, DeepseekV32.invoke), V4
    tags = replace(DeepseekV32.tags, call_ends=(DeepseekV32.invoke_end, end))
