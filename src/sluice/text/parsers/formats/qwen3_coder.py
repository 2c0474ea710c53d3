"""The calls of Qwen3-Coder, and of Seed-OSS: tags for the function and for each argument, whose values are no JSON.

    <tool_call>
    <function=weather>
    <parameter=city>
    Ulm
    </parameter>
    </function>
    </tool_call>

Sources: Qwen, the chat template of Qwen3-Coder, 2025; ByteDance, that of Seed-OSS, 2025.
"""

from __future__ import annotations

from sluice.text.constraints.shapes import Members
from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.parsers.calls import LONGEST_HEAD, Calls, skip_texts, text_and_calls
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.formats.tagged_arguments import Tags, read_arguments
from sluice.text.parsers.parsing import Source, Steps, comes, place_of, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller

BEGIN, END = "<tool_call>", "</tool_call>"
SEED_BEGIN, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3Coder(TaggedFormat):
    name = "qwen3_coder"
    begin, begins, markers = BEGIN, (BEGIN, FUNCTION), (BEGIN, END)
    end = END
    tags = Tags(BEGIN, PARAMETER, ">", "", PARAMETER_END, (FUNCTION_END, END), in_lines=True)
    line = "\n"
    """What stands next to a value."""

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(marker: str) -> Steps[bool]:
            at = 0
            if marker == self.begin:
                at = yield from space_ahead(source)
                if not (yield from comes(source, FUNCTION, at)):
                    return False
                at += len(FUNCTION)
            end = yield from place_of(source, ">", at + LONGEST_HEAD)
            begun = calls.begin(source.peek()[at:end].strip()) if end >= 0 else None
            if begun is None:
                return False
            source.take(end + 1)
            yield begun
            yield from read_arguments(source, begun.index, calls.tools[begun.name].schema, self.tags)
            yield from skip_texts(source, self.end)
            return True

        yield from text_and_calls(source, self.begins, read_call)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        arguments = Members(tool.arguments, (PARAMETER,), (f">{self.line}",), f"{self.line}{PARAMETER_END}\n")
        return speller.sequence(f"{self.begin}\n{FUNCTION}{tool.name}>\n", arguments, f"{FUNCTION_END}\n{self.end}")


class SeedOss(Qwen3Coder):
    name = "seed_oss"
    begin, begins, markers = SEED_BEGIN, (SEED_BEGIN, FUNCTION), (SEED_BEGIN, SEED_END)
    end = SEED_END
    tags = Tags(SEED_BEGIN, PARAMETER, ">", "", PARAMETER_END, (FUNCTION_END, SEED_END))
    line = ""
