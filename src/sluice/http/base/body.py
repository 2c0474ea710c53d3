"""The body of a request: its bytes within bounds of size and time, and these as typed fields.

JSON types are strict ("5" is no number), and every refusal names its field.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from sluice.http.base.calls import CALL, Call
from sluice.http.base.errors import LONGEST_MESSAGE, ApiError, bad_request
from sluice.http.base.json_bounds import check_contents
from sluice.http.base.unknown_fields import check_strict, ignore_unknown
from sluice.http.base.unsupported_fields import UNSUPPORTED, Accepted, asks_for_nothing, instead_of, is_neutral
from sluice.types.shown import clipped

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

LONG_BODY = 1 << 16
"""Bytes from which a body is parsed outside the event loop: millions of token ids take a second, in which no stream
would continue."""
BODIES = 16
"""The long bodies of all calls that are not over may have so many times the most bytes of one."""
RETRY_SECONDS = 1
SETTINGS = ("", "options", "sampling_params")
"""Where a body has fields of which some values ask for nothing."""
LONGEST_NUMBER = 18
"""Digits of a content-length that is still read as a number."""
LONGEST_SHOWN = 60
"""Characters of a value that a refusal repeats."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The most bytes of a body, and the seconds in which it must arrive, since until then it holds a connection."""

    max_bytes: int = 32 << 20
    max_seconds: float = 60.0


class BodyReader:
    """Reads and parses the bodies of all calls. It is a `calls.Listener`.

    The bytes of all long bodies together are bounded, each until its call is over. Short ones are not counted: the
    number of connections bounds them.

    Args:
        strict_fields: unknown fields are refused, where they are ignored otherwise.
    """

    def __init__(self, limits: BodyLimits, *, strict_fields: bool = False) -> None:
        self._limits = limits
        self._strict_fields = strict_fields
        self._most_held = BODIES * limits.max_bytes
        self._held = 0
        # One thread: parsing may take ten times the memory of a body, and two would only wait for each other's lock.
        self._parsers = ThreadPoolExecutor(1, "parse-body")

    async def read(self, request: Request, parse: Callable[[bytes], T], *, marker: bytes | None = None) -> T:
        """Return `parse(body)` of a request.

        Args:
            marker: bodies with these bytes take long to parse, however short they are.

        Raises:
            ApiError: as `parse`; 400, an unknown field, if they are refused; 413, more bytes than are accepted; 408,
                it takes too long; 503, the bodies of other calls have too many bytes.
        """
        content = await parsed(parse, await self._received(request), self._parsers, marker)
        self.check_ignored()
        return content

    def check_ignored(self) -> None:
        """Refuse what was ignored of the present call's body, if unknown fields are refused.

        Raises:
            ApiError: 400.
        """
        if self._strict_fields:
            check_strict(CALL.get())

    def answered(self, call: Call) -> None:
        self._held -= call.body_bytes

    async def _received(self, request: Request) -> list[bytes]:
        """Return the body in the parts in which it came: to put 30 MB together takes 20 ms."""
        limits = self._limits
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and (len(declared) > LONGEST_NUMBER or int(declared) > limits.max_bytes):
            raise _too_large(limits)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.max_seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > limits.max_bytes:
                        raise _too_large(limits)
                    if size >= LONG_BODY:
                        self._hold(size)
        except TimeoutError as error:
            raise ApiError(408, f"the body did not arrive within {limits.max_seconds:g} seconds") from error
        return parts

    def _hold(self, size: int) -> None:
        """Count the body of the present call with so many bytes.

        Raises:
            ApiError: 503, there are too many.
        """
        call = CALL.get()
        assert call is not None, "a body is read in a call"
        more = size - call.body_bytes
        if self._held + more > self._most_held:
            raise ApiError(
                503,
                f"the server works on requests of {self._held} bytes, and accepts {self._most_held} together",
                code="overloaded",
                retry_after=RETRY_SECONDS,
            )
        self._held += more
        call.body_bytes = size


def _too_large(limits: BodyLimits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.max_bytes} bytes, the most that is accepted")


async def parsed(parse: Callable[[bytes], T], parts: list[bytes], parsers: Executor, marker: bytes | None = None) -> T:
    """Return what `parse` makes of a body, called in another thread if the body is long, or holds the marker.

    Args:
        parts: of the body; empty afterwards.

    Raises:
        ApiError: as `parse`.
    """
    if sum(map(len, parts)) < LONG_BODY:
        body = _joined(parts)
        if marker is None or marker not in body:
            return parse(body)
        parts.append(body)
    context = contextvars.copy_context()
    work = partial(context.run, lambda: parse(_joined(parts)))
    return await asyncio.get_running_loop().run_in_executor(parsers, work)


def _joined(parts: list[bytes]) -> bytes:
    """Return all parts as one, and keep none of them."""
    body = b"".join(parts)
    parts.clear()
    return body


def read_fields(body: bytes, kind: type[S], unsupported: Mapping[str, Accepted] = UNSUPPORTED) -> S:
    """Return a JSON body as a struct.

    Args:
        unsupported: see `known_fields`.

    Raises:
        ApiError: 400, naming the field.
    """
    return convert(known_fields(json_object(body), fields_of(kind), unsupported=unsupported), kind)


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is.

    Raises:
        ApiError: 400, no JSON, no UTF-8, nested too deeply, or no object; 413, too many values.
    """
    check_contents(body)
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
    content: Mapping[str, Any],
    known: frozenset[str],
    place: str = "",
    unsupported: Mapping[str, Accepted] = UNSUPPORTED,
) -> dict[str, Any]:
    """Return the known fields that are not null. Unknown ones are noted as ignored (`unknown_fields`).

    Args:
        place: where the fields stand in the body, as a path.
        unsupported: fields beside these, with the values that are accepted. What says the same as a known field that
            stands beside it is accepted, too.

    Raises:
        ApiError: 400, a field whose value is not accepted, or that misspells a known one.
    """
    kept: dict[str, Any] = {}
    unknown: list[str] = []
    for name, value in content.items():
        if value is None or (name in known and place in SETTINGS and asks_for_nothing(name, value)):
            continue
        if name in known:
            kept[name] = value
        elif name in unsupported and not _is_harmless(value, unsupported[name]):
            unknown.append(name)
        elif name in unsupported:
            other = instead_of(name, known)
            if other is None or content.get(other) != value:
                _check_unsupported(name, value, unsupported[name], other, place)
        else:
            unknown.append(name)
    if unknown:
        meaningful = {name for name, accepted in unsupported.items() if not isinstance(accepted, type)}
        ignore_unknown(unknown, known | meaningful, place)
    return kept


def take_fields(content: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Remove a struct's fields from a body's content, and return them."""
    return {name: content.pop(name) for name in fields_of(kind) & content.keys()}


def given_fields(content: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Remove a struct's fields from a body's content, and return those that are not null."""
    given = take_fields(content, kind).items()
    return {name: value for name, value in given if value is not None and not asks_for_nothing(name, value)}


def _is_harmless(value: Any, accepted: Accepted) -> bool:
    """Return whether a value is of the type that a harmless field has; true for fields that would have an effect."""
    if isinstance(accepted, tuple):
        return True
    # In JSON, true is no integer.
    return isinstance(value, accepted) and not (accepted is int and isinstance(value, bool))


def _check_unsupported(name: str, value: Any, accepted: Accepted, instead: str | None, place: str) -> None:
    if isinstance(accepted, type) or is_neutral(name, value, accepted):
        return
    param = f"{place}.{name}" if place else name
    choices = " or ".join(["null", *map(repr, accepted)]) if instead is None else instead
    raise bad_request(f"{param} is not supported; leave it out, or send {choices}", param=param)


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
        raise _invalid(clipped(str(error), LONGEST_MESSAGE), content, place, accepted or {}) from error


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
    is_short = len(content) <= LONGEST_SHOWN if isinstance(content, str) else isinstance(content, int | float)
    if not is_short or len(repr(content)) > LONGEST_SHOWN:
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
