"""Responses that were asked to be stored, in memory, within bounds of number and size."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.http.base.errors import ApiError
from sluice.types.shown import shown

OVERHEAD = 1 << 10
"""Bytes that a stored response takes besides its JSON."""


def owner_of(api_key: bytes, salt: str) -> bytes:
    """Return who may see a response: those with the same API key who send the same `cache_salt`, or none."""
    return hashlib.sha256(hashlib.sha256(api_key).digest() + salt.encode()).digest()


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and the conversation that it answers, as JSON: decoded values would take ten times the memory."""

    owner: bytes
    response: bytes
    input: bytes
    """The items of the conversation before it, those of earlier responses included."""

    @property
    def size(self) -> int:
        return len(self.response) + len(self.input) + OVERHEAD

    def items(self) -> list[dict[str, Any]]:
        """Return the conversation up to and including the response."""
        response = msgspec.json.decode(self.response)
        return [*self.input_items(), *response["output"]]

    def input_items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = msgspec.json.decode(self.input)
        return items


class ResponseStore:
    """Keeps the responses that were used last. Long bodies are parsed in a thread, so it may be used from several.

    Args:
        max_items: most responses; 0: none is stored.
        max_bytes: most bytes of all of them together.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes = max_items, max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._lock = threading.Lock()
        self._size = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def is_open(self) -> bool:
        """Whether any response is stored."""
        return self._max_items > 0

    def can_hold(self, size: int) -> bool:
        """Return whether a response with so many bytes of JSON is stored."""
        return self.is_open and size + OVERHEAD <= self._max_bytes

    def put(self, id: str, stored: StoredResponse) -> None:
        """Store a response, and forget those that were used least recently, as many as there is no room for.

        One of another owner stays as it is.
        """
        if not self.can_hold(stored.size - OVERHEAD):
            return
        with self._lock:
            before = self._stored.pop(id, None)  # a stream that is continued here ends as it did before
            if before is not None:
                self._size -= before.size
                stored = stored if before.owner == stored.owner else before
            self._stored[id] = stored
            self._size += stored.size
            while len(self._stored) > self._max_items or self._size > self._max_bytes:
                _, oldest = self._stored.popitem(last=False)
                self._size -= oldest.size

    def get(self, id: str, owner: bytes, *, param: str | None = None) -> StoredResponse:
        """Return a response, which counts as used.

        Args:
            param: the field of a body that names it.

        Raises:
            ApiError: 404, it is not stored, or belongs to another owner.
        """
        with self._lock:
            stored = self._stored.get(id)
            if stored is None or stored.owner != owner:
                raise _not_found(id, param)
            self._stored.move_to_end(id)
            return stored

    def delete(self, id: str, owner: bytes) -> None:
        """Forget a response.

        Raises:
            ApiError: as `get`.
        """
        with self._lock:
            stored = self._stored.get(id)
            if stored is None or stored.owner != owner:
                raise _not_found(id, None)
            del self._stored[id]
            self._size -= stored.size


def _not_found(id: str, param: str | None) -> ApiError:
    message = f"the response {shown(id)} is not stored: it never was, was deleted, or made room for later ones"
    return ApiError(404, message, param=param, code="response_not_found")
