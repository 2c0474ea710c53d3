"""The body of a request: its bytes within bounds of size and time, and these as typed fields.

JSON types are strict ("5" is no number), and every refusal names its field.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from sluice.http.errors import ApiError, bad_request
from sluice.http.unsupported_fields import KINDS, Accepted

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

LONG_BODY = 1 << 16
"""Bytes from which a body is parsed outside the event loop: millions of token ids take a second, in which no stream
would go on."""
LONGEST_NUMBER = 18
"""Digits of a content-length that is still read as a number."""
LONGEST_SHOWN = 60
"""Characters of a value that a refusal repeats."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The most bytes of a body, and the seconds in which it must arrive, since until then it holds a connection."""

    max_bytes: int = 32 << 20
    max_seconds: float = 60.0


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Receive the body of a request.

    Raises:
        ApiError: 413, more bytes than are accepted; 408, it takes too long.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > LONGEST_NUMBER or int(declared) > limits.max_bytes):
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.max_seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.max_bytes:
                    raise _too_large(limits)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {limits.max_seconds:g} seconds") from error
    return bytes(body)


def _too_large(limits: BodyLimits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.max_bytes} bytes, the most that is accepted")


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Return `parse(body)`, called in another thread if the body is long.

    Raises:
        ApiError: as `parse`.
    """
    return parse(body) if len(body) < LONG_BODY else await asyncio.to_thread(parse, body)


def read_fields(body: bytes, kind: type[S], unsupported: Mapping[str, Accepted]) -> S:
    """Return a JSON body as a struct.

    Args:
        unsupported: fields beside those of the struct, with the values that are accepted.

    Raises:
        ApiError: 400, naming the field.
    """
    return convert(known_fields(json_object(body), fields_of(kind), unsupported), kind)


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is.

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
    """Return the names that a struct's fields have in JSON."""
    return frozenset(kind.__struct_encode_fields__)


def known_fields(
    content: Mapping[str, Any], known: frozenset[str], unsupported: Mapping[str, Accepted], place: str = ""
) -> dict[str, Any]:
    """Return the known fields that are not null.

    Args:
        unsupported: fields beside these, with the values that are accepted.
        place: where the fields stand in the body, as a path.

    Raises:
        ApiError: 400, a field that is not known and whose value is not accepted.
    """
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in known and value is not None:
            kept[name] = value
        elif value is not None:
            _check_unsupported(f"{place}.{name}" if place else name, value, unsupported.get(name, ()))
    return kept


def _check_unsupported(name: str, value: Any, accepted: Accepted) -> None:
    if isinstance(accepted, type):
        if not isinstance(value, accepted):
            raise bad_request(f"{name} must be {KINDS[accepted]}, got {kind_of(value)}", param=name)
        return
    # In JSON a number is no boolean, while in Python 0 equals False.
    if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in accepted):
        return
    what = "is not supported" if accepted else "is not a field of this API, or not one that is supported"
    choices = " or ".join(["null", *map(repr, accepted)])
    raise bad_request(f"{name} {what}; leave it out, or send {choices}", param=name)


def convert(content: Any, kind: type[S], place: str = "", accepted: Mapping[str, str] | None = None) -> S:
    """Return a JSON value as a struct.

    Args:
        place: where the value stands in the body, as a path.
        accepted: field -> the values it may have, for fields whose types do not say it.

    Raises:
        ApiError: 400, a field that is missing, unknown or of another type.
    """
    try:
        return msgspec.convert(content, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), content, place, accepted or {}) from error


def _invalid(message: str, content: Any, place: str, accepted: Mapping[str, str]) -> ApiError:
    """Return msgspec's "Expected `int`, got `str` - at `$.seed`" in terms of the request."""
    what, _, path = message.partition(" - at ")
    path = path.strip("`").removeprefix("$").removeprefix(".")
    named = re.search(r"(missing required|unknown) field `(\w+)`", what)
    param = ".".join(step for step in (place, path, "" if named is None else named[2]) if step)
    if named is not None:
        return bad_request(f"{param} is {'not supported' if named[1] == 'unknown' else 'required'}", param=param)
    field = re.sub(r".*\.|\[\d+\]", "", path)
    other = f"; accepted: {accepted[field]}" if field in accepted else _shown(content, path)
    return bad_request(f"{param}: {what[:1].lower()}{what[1:]}{other}", param=param)


def _shown(content: Any, path: str) -> str:
    """Return the value at a path, if it is short; of other values the type is enough."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        try:
            content = content[int(index) if index else name]
        except (KeyError, IndexError, TypeError):
            return ""  # a key that msgspec does not name
    if not isinstance(content, str | int | float) or len(repr(content)) > LONGEST_SHOWN:
        return ""
    return f": {msgspec.json.encode(content).decode()}"


def are_ids(value: Any) -> bool:
    """Return whether a JSON value is a non-empty list of integers."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def kind_of(value: Any) -> str:
    """Describe a JSON value in a few words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return "a list of something else" if value else "an empty list"
    return "an object"
