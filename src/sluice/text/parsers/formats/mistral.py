"""The calls of Mistral, in both of its forms: behind one tag a list, or a tag for each name and its arguments.

    [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}]
    [TOOL_CALLS]weather[ARGS]{"city": "Ulm"}

Source: Mistral AI, "mistral-common": its tokenizers v3 and v7 write the first form, v11 and later the second.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import Calls, read_headed_call, read_json_calls, text_and_calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.parsing import Source, Steps, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller, json_list, one_of, several, text_with

TAG, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
HEAD = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*")
ARGUMENTS = ("arguments", "parameters")
ID_LENGTH = 9
"""The models' templates refuse ids of another length, or of other characters than letters and digits."""


class Mistral(Format):
    name = "mistral"
    begins, markers = (TAG,), (TAG, CALL_ID, ARGS)

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            space = yield from space_ahead(source)
            if source.starts_with("[", space) or source.starts_with("{", space):
                return (yield from read_json_calls(source, calls, space, ARGUMENTS, ","))
            return (yield from read_headed_call(source, calls, HEAD, (TAG,)))

        yield from text_and_calls(source, (TAG,), read_call)

    def id_of(self, name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()[:ID_LENGTH]

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        if speller.has_token(ARGS):
            return several(one_of(self._call(tool, speller) for tool in tools), "", is_parallel=is_parallel)
        return json_list(tools, TAG, "", speller, is_parallel=is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        if not speller.has_token(ARGS):
            calls = [json_list(tools, TAG, "", speller, is_parallel=is_parallel)]
            return text_with(calls, speller.mark(TAG), is_parallel=False)
        calls = [self._call(tool, speller) for tool in tools]
        return text_with(calls, speller.mark(TAG), is_parallel=is_parallel)

    def _call(self, tool: ShapedTool, speller: Speller) -> Row:
        return speller.sequence(f"{TAG}{tool.name}{ARGS}", tool.arguments)
