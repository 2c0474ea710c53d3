"""The content of messages, and the calls in them: texts and objects, made of all that clients send back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.http.base.body import kind_of, known_fields
from sluice.http.base.errors import ApiError, bad_request, require
from sluice.http.base.json_bounds import check_nesting
from sluice.http.base.unsupported_fields import IN_PARTS
from sluice.types.shown import shown

TEXTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Type of a part of a message -> its field with the text."""
THOUGHTS: Mapping[str, str] = {
    "thinking": "thinking",
    "reasoning": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "redacted_thinking": "text",
}
"""The same of parts that are reasoning."""
RESULTS = ("tool", "function")
"""Roles of messages that bring the result of a call, which may be any JSON."""
FUNCTION = ("name", "arguments", "input")


def content_of(content: Any, role: str, place: str) -> tuple[str, str]:
    """Return the text and the reasoning that the content of a message is. Texts are joined by line breaks."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if role in RESULTS and not isinstance(content, list):
        check_nesting(content, place)
        return msgspec.json.encode(content).decode(), ""
    if not isinstance(content, list):
        raise bad_request(f"{place} must be a text or a list of parts, got {kind_of(content)}", param=place)
    texts, thoughts = list[str](), list[str]()
    for index, part in enumerate(content):
        kind, text = text_of_part(part, f"{place}[{index}]")
        (thoughts if kind in THOUGHTS else texts).append(text)
    return "\n".join(texts), "\n".join(filter(None, thoughts))


def text_of_part(part: Any, place: str) -> tuple[str, str]:
    """Return the type of a part of a message, and its text. Other keys are noted as ignored.

    Raises:
        ApiError: 400, a part that is no text.
    """
    if isinstance(part, str):
        return "text", part
    if not isinstance(part, dict):
        raise bad_request(f"{place} must be a part of a message, got {kind_of(part)}", param=place)
    kind = part.get("type") or "text"
    known = {**TEXTS, **THOUGHTS}
    if not isinstance(kind, str) or kind not in known:
        got = shown(kind) if isinstance(kind, str) else kind_of(kind)
        raise bad_request(f"{place}.type {got} is not supported; accepted: {', '.join(known)}", param=f"{place}.type")
    name = known[kind]
    known_fields({key: value for key, value in part.items() if key not in (name, "type")}, frozenset(), place, IN_PARTS)
    text = part.get(name)
    is_fine = isinstance(text, str) or text is None
    require(is_fine, f"{place}.{name} must be a text, got {kind_of(text)}", param=f"{place}.{name}")
    return kind, text or ""


def called_function(place: str, given: Any) -> dict[str, Any]:
    """Return the name and the arguments of a call, as templates take them. Other keys are noted as ignored.

    Raises:
        ApiError: 400, there is no name, or as `arguments_of`.
    """
    what = f"{place} is required" if given is None else f"{place} must be an object, got {kind_of(given)}"
    require(isinstance(given, dict), what, param=place)
    name = given.get("name")
    is_name = isinstance(name, str) and bool(name)
    require(is_name, f"{place}.name is required, the name of a tool; got {kind_of(name)}", param=f"{place}.name")
    known_fields({key: value for key, value in given.items() if key not in FUNCTION}, frozenset(), place, IN_PARTS)
    if "input" in given and "arguments" not in given:
        return {"name": name, "arguments": arguments_of(f"{place}.input", given["input"], "input")}
    return {"name": name, "arguments": arguments_of(f"{place}.arguments", given.get("arguments"))}


def arguments_of(place: str, given: Any, name: str = "arguments") -> dict[str, Any]:
    """Return the arguments of a call as an object: templates write them as JSON, or one by one.

    What is no JSON of an object, or one that templates cannot take, is the argument of a name: models write such calls,
    and are to see them where a client asks for a better one. Nothing, and an empty list, are no arguments.

    Raises:
        ApiError: 400, a text that is no Unicode, or an object that is nested too deeply or holds too large an integer.
    """
    if given in (None, "", []):
        return {}
    if isinstance(given, str):
        return _parsed(place, given, name)
    check_nesting(given, place)
    return given if isinstance(given, dict) else {name: given}


def _parsed(place: str, text: str, name: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
        check_nesting(found, place)
    except UnicodeError as error:
        raise bad_request(f"{place} must be Unicode text: {error}; got {shown(text)}", param=place) from error
    except (msgspec.DecodeError, RecursionError, ApiError):
        found = None
    return found if isinstance(found, dict) else {name: text}
