"""The calls of Gemma 4: names without quotes, and texts between tokens in the place of quotes.

    <|tool_call>call:weather{city:<|"|>Ulm<|"|>,days:3}<tool_call|>

Texts of nested objects and lists are forced to be JSON's, which is read too.

Source: Google, the chat template of gemma-4-31B-it, 2026.
"""

from __future__ import annotations

import re

from sluice.text.constraints.shapes import Members
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.formats.tagged_arguments import read_objects
from sluice.text.parsers.literals import Notation, read_literals
from sluice.text.parsers.parsing import Source, Steps, place_of
from sluice.text.parsers.shapes import ShapedTool, Speller

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
HEAD = re.compile(r"\s*(?:call\s*:)?\s*(?P<name>[\w.-]+)\s*")


class Gemma4(TaggedFormat):
    name = "gemma4"
    begin, begins, markers = BEGIN, (BEGIN,), (BEGIN, END, QUOTE)
    separator = ""
    notation = Notation(":", "}", (END, BEGIN), QUOTE)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            if (yield from read_objects(source, calls, END)):
                return True
            at = yield from place_of(source, "{", LONGEST_HEAD)
            found = HEAD.fullmatch(source.peek()[:at]) if at >= 0 else None
            begun = None if found is None else calls.begin(found["name"])
            if begun is None:
                return False
            source.take(at + 1)
            yield begun
            yield from read_literals(source, begun.index, calls.types(begun.name), self.notation)
            yield from skip_texts(source, END)
            return True

        yield from text_and_calls(source, (BEGIN,), read_call)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        # A model without this token does not know how to end a text by it.
        quote = speller.mark(QUOTE) if speller.has_token(QUOTE) else ""
        arguments = Members(tool.arguments, (), (":",), quote, separator=",", quote=quote)
        return speller.sequence(f"{BEGIN}call:{tool.name}{{", arguments, f"}}{END}")
