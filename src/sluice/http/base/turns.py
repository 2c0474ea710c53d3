"""Turns for long work on the event loop: it is done in short pieces, between which everything else continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")
PIECE_BYTES = 1 << 15
"""Bytes of JSON that are made in one piece: about 1 ms of log-probabilities."""
PIECE_ITEMS = 256
"""Items of lists that are made in one piece."""

SHORT = 8
"""Items of a list that is made at once."""


class Turns:
    """Gives one task at a time a turn, in which it does one piece of its work.

    The loop runs all that is ready between two turns, so work of any length and of any number of calls delays other
    callbacks by one piece.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await asyncio.sleep(0)
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


class BegunInTurns:
    """ASGI middleware that begins POST requests one in a turn.

    When many come at once, a health check among them does not wait until all of them were parsed and submitted.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            async with self._turns:
                pass
        await self._app(scope, receive, send)


class JsonList:
    """A list of a JSON value whose items are made while they are written.

    Args:
        items: JSON values, which may hold a `JsonList` each.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items


class Recorded:
    """A JSON value whose bytes are kept, too: `record` receives all of them before the last ones are written.

    If its client leaves before, it receives nothing.
    """

    def __init__(self, value: Any, record: Callable[[bytes], None]) -> None:
        self.value, self.record = value, record


def json_list(items: Iterable[T], count: int) -> list[T]:
    """Return `count` items as a list if they are few, else a `JsonList`, which only stands where a list would."""
    return [*items] if count <= SHORT else cast("list[T]", JsonList(items))


class _HasJsonList(Exception):
    """The value cannot be encoded at once."""


def _refuse(value: Any) -> Any:
    if isinstance(value, JsonList | Recorded):
        raise _HasJsonList
    raise TypeError(f"{type(value).__name__} is no JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_refuse)


def json_of(value: Any) -> bytes:
    """Return the JSON of a value without a `JsonList`."""
    return _ENCODER.encode(value)


def at_once(value: Any) -> bytes | None:
    """Return the JSON of a value, or None if it holds a `JsonList` or is `Recorded`."""
    try:
        return json_of(value)
    except _HasJsonList:
        return None


def fragments(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value, one fragment for each item of a `JsonList`."""
    whole = at_once(value)
    if whole is not None:
        yield whole
    elif isinstance(value, Recorded):
        yield from _recorded(value)
    elif isinstance(value, dict | msgspec.Struct):
        before = b"{"
        for name, item in _members(value):
            yield before + json_of(name) + b":"
            yield from fragments(item)
            before = b","
        yield b"}"
    else:
        before = b"["
        for item in value.items if isinstance(value, JsonList) else value:
            yield before
            yield from fragments(item)
            before = b","
        yield b"]" if before == b"," else b"[]"


def _members(value: dict[str, Any] | msgspec.Struct) -> Iterable[tuple[str, Any]]:
    """Return the names and values of an object, as `msgspec` would write them."""
    if isinstance(value, dict):
        return value.items()
    config = value.__struct_config__
    tag = [] if config.tag is None else [(str(config.tag_field), config.tag)]
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    fields = ((name, getattr(value, field)) for name, field in names)
    return [*tag, *((name, item) for name, item in fields if item is not msgspec.UNSET)]


def _recorded(value: Recorded) -> Iterator[bytes]:
    """Yield the fragments of a value, and record them before the last."""
    made: list[bytes] = []
    for part in fragments(value.value):
        if made:
            yield made[-1]
        made.append(part)
    value.record(b"".join(made))
    yield made[-1]


def pieces(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield fragments joined to pieces, and whether it is the last one, which may be empty.

    The others have `PIECE_BYTES` or `PIECE_ITEMS`.
    """
    joined: list[bytes] = []
    size = 0
    for part in parts:
        joined.append(part)
        size += len(part)
        if size >= PIECE_BYTES or len(joined) >= 2 * PIECE_ITEMS:  # an item and what precedes it
            yield b"".join(joined), False
            joined, size = [], 0
    yield b"".join(joined), True


async def in_turns(turns: Turns, made: Iterator[tuple[bytes, bool]]) -> AsyncGenerator[bytes, None]:
    """Yield the `pieces` that are left, the last one included, each made in a turn of its own."""
    is_last = False
    while not is_last:
        async with turns:
            piece, is_last = next(made)
        yield piece
