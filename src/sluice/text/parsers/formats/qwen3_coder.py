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
from sluice.text.parsers.calls import Calls
from sluice.text.parsers.formats.base import TaggedFormat
from sluice.text.parsers.formats.tagged_arguments import Head, Tags, read_invoked
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller

BEGIN, END = "<tool_call>", "</tool_call>"
SEED_BEGIN, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3Coder(TaggedFormat):
    name = "qwen3_coder"
    begin, begins, markers = BEGIN, (BEGIN, FUNCTION), (BEGIN, END)
    end = END
    tags = Tags(BEGIN, PARAMETER, ">", (), PARAMETER_END, (FUNCTION_END, END), in_lines=True)
    line = "\n"
    """What stands next to a value."""

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        return read_invoked(source, calls, Head(self.begin, FUNCTION, ">", self.end, is_spaced=True), self.tags)

    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        arguments = Members(tool.arguments, (PARAMETER,), (f">{self.line}",), f"{self.line}{PARAMETER_END}\n")
        return speller.sequence(f"{self.begin}\n{FUNCTION}{tool.name}>\n", arguments, f"{FUNCTION_END}\n{self.end}")


class SeedOss(Qwen3Coder):
    name = "seed_oss"
    begin, begins, markers = SEED_BEGIN, (SEED_BEGIN, FUNCTION), (SEED_BEGIN, SEED_END)
    end = SEED_END
    tags = Tags(SEED_BEGIN, PARAMETER, ">", (), PARAMETER_END, (FUNCTION_END, SEED_END))
    line = ""
