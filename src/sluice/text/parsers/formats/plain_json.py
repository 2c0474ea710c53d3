"""Calls of models that were trained on no format: an answer of JSON objects, or a list of them.

{"name": "weather", "arguments": {"city": "Ulm"}}
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import JSON_BEGIN, Calls, is_cut_json, read_json_calls, text_and_calls
from sluice.text.parsers.formats.base import Format
from sluice.text.parsers.parsing import Source, Steps, space_ahead
from sluice.text.parsers.shapes import ShapedTool, Speller, json_object, one_of, several

ARGUMENTS = ("arguments", "parameters")


class PlainJson(Format):
    name = "json"
    begins: tuple[str, ...] = (JSON_BEGIN,)
    markers = ()

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        has_called = False
        while (yield from read_json_calls(source, calls, (yield from space_ahead(source)), ARGUMENTS, ",")):
            has_called = True
        if not has_called and is_cut_json(source):
            source.take()
        yield from text_and_calls(source, (), _nothing, after_call=has_called)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        one = one_of(speller.sequence(*json_object(tool, "arguments")) for tool in tools)
        return speller.sequence("[", several(one, ", ", is_parallel=True), "]") if is_parallel else one


def _nothing(_: str) -> Steps[bool]:
    return False
    yield
