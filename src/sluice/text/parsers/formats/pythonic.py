"""Calls as Python writes them: those of Llama 4, of LFM2 between tags, and of Olmo 3, which has a line for each.

    [weather(city="Ulm", days=3), now()]
    <|tool_call_start|>[weather(city='Ulm', days=3)]<|tool_call_end|>
    <function_calls>weather(city="Ulm", days=3)
    now()</function_calls>

Values are forced to be JSON, which the models write too; what is read may be Python's.

Sources: Meta, "Llama 4 model cards and prompt formats", 2025; Liquid AI, the chat template of LFM2.5-8B-A1B, 2026; Ai2,
that of Olmo-3-7B-Instruct, 2025.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.text.constraints.shapes import Members, Shape
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import (
    FENCE,
    LONGEST_HEAD,
    Calls,
    fence_ahead,
    read_json_calls,
    skip_texts,
    text_and_calls,
)
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.literals import Notation, read_literals
from sluice.text.parsers.parsing import Source, Steps, comes, place_of, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, several, text_with

NAME = re.compile(r"[\w.-]*")
ARGUMENTS = ("arguments", "parameters")


class Pythonic(Format):
    name = "llama4_pythonic"
    begin, end = "<|python_start|>", "<|python_end|>"
    opening, separator, closing = "[", ", ", "]"
    """What stands around all calls, and between each two."""
    needs_tag = False
    """Calls stand behind the tag alone, and may stand without brackets there."""
    begins: tuple[str, ...] = (begin,)
    markers: tuple[str, ...] = (begin, end)
    notation = Notation("=", ")", (",", "]", ";", end), "'", "(", has_escapes=True)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(marker: str) -> Steps[bool]:
            return self._read_calls(source, calls, is_tagged=bool(marker))

        has_called = False
        while not self.needs_tag and (yield from read_call("")):
            has_called = True
        yield from text_and_calls(source, (self.begin,), read_call, after_call=has_called)

    def _read_calls(self, source: Source, calls: Calls, *, is_tagged: bool) -> Steps[bool]:
        """Read calls; return whether there is one at first, without which nothing is read."""
        at = yield from fence_ahead(source)
        if is_tagged and (yield from read_json_calls(source, calls, at, ARGUMENTS, ",")):
            yield from skip_texts(source, FENCE, self.end)
            return True
        has_opening = yield from comes(source, "[", at)
        if not has_opening and not is_tagged:
            return False
        if not (yield from self._read_call(source, calls, at + has_opening)):
            return False
        is_call = True
        while is_call:
            at = yield from space_ahead(source)
            for separator in ",;":
                if (yield from comes(source, separator, at)):
                    at += 1 + (yield from space_ahead(source, at + 1))
            is_call = yield from self._read_call(source, calls, at)
        if has_opening and (yield from comes(source, "]", at)):
            source.take(at)
        yield from skip_texts(source, "]" if has_opening else "", FENCE, self.end)
        return True

    def _read_call(self, source: Source, calls: Calls, at: int) -> Steps[bool]:
        at += yield from space_ahead(source, at)
        size = yield from place_of(source, "(", at + LONGEST_HEAD)
        name = source.peek()[at : max(size, 0)].strip()
        begun = calls.begin(name) if NAME.fullmatch(name) else None
        if begun is None:
            return False
        source.take(size + 1)
        yield begun
        yield from read_literals(source, begun.index, calls.types(begun.name), self.notation)
        return True

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return self._all(tools, speller, is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        if not self.needs_tag:
            return None
        return text_with([self._all(tools, speller, is_parallel)], speller.mark(self.begin), is_parallel=False)

    def _all(self, tools: Sequence[ShapedTool], speller: Speller, is_parallel: bool) -> Row:
        one = several(one_of(self._call(tool, speller) for tool in tools), self.separator, is_parallel=is_parallel)
        begin, end = (self.begin, self.end) if self.needs_tag else ("", "")
        return speller.sequence(begin + self.opening, one, self.closing + end)

    def _call(self, tool: ShapedTool, speller: Speller) -> Row:
        arguments = Members(tool.arguments, (), ("=",), separator=", ", quote="")
        return speller.sequence(f"{tool.name}(", arguments, ")")


class Lfm2(Pythonic):
    name = "lfm2"
    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    needs_tag = True
    begins, markers = (begin,), (begin, end)
    notation = Notation("=", ")", (",", "]", ";", end), "'", "(", has_escapes=True)


class Olmo3(Pythonic):
    name = "olmo3"
    begin, end = "<function_calls>", "</function_calls>"
    opening, separator, closing = "", "\n", ""
    needs_tag = True
    begins, markers = (begin,), (begin, end)
    notation = Notation("=", ")", (",", "]", ";", "\n", end), "'", "(", has_escapes=True)
