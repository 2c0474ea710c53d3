"""Bytes of a body to typed fields. JSON types are strict ("5" is no number), and every refusal names its field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from sluice.http.errors import ApiError, bad_request

T = TypeVar("T", bound=msgspec.Struct)
NOTHING: Mapping[str, str] = MappingProxyType({})
LONGEST_SHOWN = 60
"""Characters of a value that a refusal repeats."""


def json_object(body: bytes) -> dict[str, Any]:
    """
    Raises:
        ApiError: 400, no JSON, no UTF-8, nested too deeply, or no object.
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise bad_request(f"the body must be a JSON object, got {kind_of(content)}")
    return content


def fields_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields."""
    return frozenset(kind.__struct_fields__)


def convert(content: Any, kind: type[T], place: str = "", accepted: Mapping[str, str] = NOTHING) -> T:
    """A JSON value as a struct.

    Args:
        place: where the value stands in the body.
        accepted: field -> what it may be, for those whose types do not say it.

    Raises:
        ApiError: 400, a field that is missing, unknown or of another type.
    """
    try:
        return msgspec.convert(content, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), content, place, accepted) from error


def _invalid(message: str, content: Any, place: str, accepted: Mapping[str, str]) -> ApiError:
    """msgspec's "Expected `int`, got `str` - at `$.seed`", in terms of the request."""
    what, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$").removeprefix(".")
    steps = [place, path]
    named = re.search(r"(missing required|unknown) field `(\w+)`", what)
    if named is not None:
        steps.append(named[2])
    param = ".".join(step for step in steps if step)
    if named is None:
        field = re.sub(r".*\.|\[\d+\]", "", path)
        other = f"; accepted: {accepted[field]}" if field in accepted else _shown(content, path)
        return bad_request(f"{param}: {what[:1].lower()}{what[1:]}{other}", param=param)
    return bad_request(f"{param} is {'required' if named[1] != 'unknown' else 'not supported'}", param=param)


def _shown(content: Any, path: str) -> str:
    """The value at a path, if it is short; the types of others say enough."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        try:
            content = content[int(index) if index else name]
        except (KeyError, IndexError, TypeError):
            return ""  # a key that msgspec does not name
    if not isinstance(content, str | int | float) or len(repr(content)) > LONGEST_SHOWN:
        return ""
    return f": {msgspec.json.encode(content).decode()}"


def are_ids(value: Any) -> bool:
    """A non-empty list of integers."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def kind_of(value: Any) -> str:
    """A JSON value in a few words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case "":
            return "an empty text"
        case str():
            return "a text"
        case []:
            return "an empty list"
        case list():
            return "a list of something else"
        case _:
            return "an object"
