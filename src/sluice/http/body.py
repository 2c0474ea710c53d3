"""The body of a request, within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from sluice.http.errors import ApiError

T = TypeVar("T")

LONG_BODY = 1 << 16
"""Bytes from which a body leaves the event loop: millions of token ids take a second, in which no stream went on."""
LONGEST_NUMBER = 18
"""Digits of a length that is worth reading."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a body may be. One that drips in holds a connection, and nothing else, but only so long."""

    max_bytes: int = 32 << 20
    max_seconds: float = 60.0


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """
    Raises:
        ApiError: 413, more bytes than are accepted; 408, it takes too long.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > LONGEST_NUMBER or int(declared) > limits.max_bytes):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.max_seconds):
            return await _read(request, limits)
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {limits.max_seconds:g} seconds") from error


async def parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """What `parse` makes of a body.

    Raises:
        ApiError: as `parse`.
    """
    return parse(body) if len(body) < LONG_BODY else await asyncio.to_thread(parse, body)


async def _read(request: Request, limits: BodyLimits) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limits.max_bytes:
            raise _too_large(limits)
        parts.append(part)
    return b"".join(parts)


def _too_large(limits: BodyLimits) -> ApiError:
    return ApiError(413, f"the body is larger than {limits.max_bytes} bytes, the most that is accepted")
