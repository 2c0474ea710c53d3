"""The calls of MiniMax M2: all in one section, with tags for each call and each argument.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Ulm</parameter>
    </invoke>
    </minimax:tool_call>

Source: MiniMax, the chat template of MiniMax-M2, 2025.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.text.constraints.shapes import Members, Shape
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.formats.tagged_arguments import Tags, read_arguments
from sluice.text.parsers.parsing import Source, Steps, comes, place_of, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, several, text_with

BEGIN, END = "<minimax:tool_call>", "</minimax:tool_call>"
INVOKE, INVOKE_END = '<invoke name="', "</invoke>"
PARAMETER, NAME_END, PARAMETER_END = '<parameter name="', '">', "</parameter>"
TAGS = Tags(INVOKE, PARAMETER, NAME_END, "", PARAMETER_END, (INVOKE_END, END))


class MinimaxM2(Format):
    name = "minimax_m2"
    begins, markers = (BEGIN, INVOKE), (BEGIN, END)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(marker: str) -> Steps[bool]:
            at = 0
            if marker == BEGIN:
                at = yield from space_ahead(source)
                if not (yield from comes(source, INVOKE, at)):
                    return False
                at += len(INVOKE)
            end = yield from place_of(source, NAME_END, at + LONGEST_HEAD)
            begun = calls.begin(source.peek()[at:end]) if end >= 0 else None
            if begun is None:
                return False
            source.take(end + len(NAME_END))
            yield begun
            yield from read_arguments(source, begun.index, calls.tools[begun.name].schema, TAGS)
            yield from skip_texts(source, END)
            return True

        yield from text_and_calls(source, self.begins, read_call)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return self._all(tools, speller, is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        return text_with([self._all(tools, speller, is_parallel)], speller.mark(BEGIN), is_parallel=False)

    def _all(self, tools: Sequence[ShapedTool], speller: Speller, is_parallel: bool) -> Row:
        one = one_of(_call(tool, speller) for tool in tools)
        return speller.sequence(f"{BEGIN}\n", several(one, "\n", is_parallel=is_parallel), f"\n{END}")


def _call(tool: ShapedTool, speller: Speller) -> Row:
    arguments = Members(tool.arguments, (PARAMETER,), (NAME_END,), f"{PARAMETER_END}\n")
    return speller.sequence(f"{INVOKE}{tool.name}{NAME_END}\n", arguments, INVOKE_END)
