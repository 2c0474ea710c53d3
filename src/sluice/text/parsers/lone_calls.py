"""Calls of models that leave out the tags of their format: the answer is a JSON object, in a fence or not.

    ```json
    {"name": "weather", "arguments": {"city": "Ulm"}}
    ```

It is a call if nothing else is in the answer, the object names a tool that was offered, and its arguments are of the
kind that the tool's schema describes. Anything else is read as the format has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from sluice.text.constraints.fits import fits
from sluice.text.parsers.argument_types import Retyped
from sluice.text.parsers.calls import Calls
from sluice.text.parsers.events import ArgumentsDelta, CallEnded
from sluice.text.parsers.json_text import JsonCall, call_of, mended
from sluice.text.parsers.parsing import Source, Steps, more

FENCE = "```"
LANGUAGES = ("", "json", "tool_call", "tool_calls", "tool_code", "function_call")
"""What may stand behind a fence."""
KEYS = ("name", "arguments", "parameters", "function", "type")
"""What the first member of a call may be."""
ARGUMENTS = ("arguments", "parameters", "input")
NAMED = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"')
LONGEST_BEGINNING = 512
"""Characters within which it is known whether an answer may be a call."""


def read_lone_calls(source: Source, calls: Calls, rest: Callable[[Source], Steps[None]], *, bare: bool) -> Steps[None]:
    """Read an answer that may be a call without tags, until its end.

    Args:
        rest: reads other answers.
        bare: it may stand without a fence.
    """
    while (may_be := _may_be(source.peek(), calls, bare=bare)) is None and source.size < LONGEST_BEGINNING:
        if not (yield from more(source)):
            break
    if may_be:
        while (yield from more(source)):
            pass
        found = [] if source.was_cut else _calls_in(source.peek(), calls)
        if found:
            source.take()
            for call in found:
                begun = calls.begin(call.name)
                assert begun is not None, "the tool is known"
                yield begun
                yield ArgumentsDelta(begun.index, call.arguments)
                yield CallEnded(begun.index, True)
            return
    yield from rest(source)


def _may_be(text: str, calls: Calls, *, bare: bool) -> bool | None:
    """Return whether an answer that begins so may be a call; None if that cannot be told yet."""
    left = text[:LONGEST_BEGINNING].lstrip()
    if FENCE.startswith(left[: len(FENCE)]) and len(left) < len(FENCE):
        return None
    if left.startswith(FENCE):
        language, has_line, left = left[len(FENCE) :].partition("\n")
        if not has_line:
            return None if any(each.startswith(language.strip()) for each in LANGUAGES) else False
        if language.strip() not in LANGUAGES:
            return False
    elif not bare:
        return False
    left = left.lstrip().removeprefix("[").lstrip()
    if not left.startswith("{"):
        return None if not left else False
    key = left[1:].lstrip()
    if not any(key.startswith(f'"{each}"') for each in KEYS):
        return None if any(f'"{each}"'.startswith(key) for each in KEYS) else False
    named = NAMED.match(left)
    return named is None or named[1] in calls.tools


def _calls_in(text: str, calls: Calls) -> list[JsonCall]:
    """Return the calls that a whole answer is; none if it is anything else, or more."""
    left = mended(re.sub(rf"^\s*{FENCE}\w*\s*\n|\n?\s*{FENCE}\s*$", "", text).strip())
    decoder, values = json.JSONDecoder(), list[Any]()
    try:
        while left:
            value, end = decoder.raw_decode(left)
            values += value if isinstance(value, list) else [value]
            left = left[end:].lstrip(" \t\r\n,;")
    except (ValueError, RecursionError):
        return []
    found = [_call(value, calls) for value in values]
    whole = [call for call in found if call is not None]
    return whole if len(whole) == len(found) and (calls.is_parallel or len(whole) == 1) else []


def _call(value: Any, calls: Calls) -> JsonCall | None:
    """Return the call that an object is, if its arguments are such as the tool takes."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not value.keys() <= {"name", "function", "type", "id", *ARGUMENTS}:
        return None
    call = call_of(json.dumps(value, ensure_ascii=False), ARGUMENTS)
    if call is None or call.name not in calls.tools:
        return None
    arguments = Retyped(calls.types(call.name)).push(call.arguments)
    return JsonCall(call.name, arguments) if fits(json.loads(arguments), calls.tools[call.name].schema) else None
