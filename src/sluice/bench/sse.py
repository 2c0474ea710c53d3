"""From the bytes of an HTTP answer and the times they came to its events and the times these were complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Read = tuple[float, bytes]


class Event(NamedTuple):
    """The data of one server-sent event. `at`: when its last byte came."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; header names in lower case."""

    status: int
    headers: dict[str, str]

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_response(reads: Sequence[Read]) -> tuple[Head | None, list[Read]]:
    """The head, None if it is not complete or none, and the body with the times its parts came, chunking undone."""
    before = b""
    for index, (at, data) in enumerate(reads):
        before += data
        head, found, rest = before.partition(b"\r\n\r\n")
        if found:
            parsed = _head(head)
            body = [(at, rest), *reads[index + 1 :]]
            if parsed is not None and parsed.headers.get("transfer-encoding", "").lower() == "chunked":
                body = list(_dechunked(body))
            return parsed, [read for read in body if read[1]]
    return None, []


def events(body: Sequence[Read]) -> list[Event]:
    """The events that are complete. Comments and other fields are left out; several data lines are joined."""
    found = []
    lines: list[bytes] = []
    rest = b""
    for at, data in body:
        *complete, rest = (rest + data).split(b"\n")
        for line in complete:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                found.append(Event(at, b"\n".join(lines)))
                lines = []
    return found


def _head(head: bytes) -> Head | None:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/") or not status[:3].isdigit():
        return None
    pairs = (line.partition(":") for line in lines)
    return Head(int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs})


def _dechunked(body: Sequence[Read]) -> Iterator[Read]:
    """The payload of chunked bytes. What follows the last chunk, or makes no sense, ends it."""
    rest = b""
    left = 0
    """Bytes of the chunk being read that are still to come, its line break included."""
    for at, data in body:
        rest += data
        payload = b""
        while rest:
            if left:
                taken, rest = rest[:left], rest[left:]
                keep = max(0, min(len(taken), left - 2))
                payload += taken[:keep]
                left -= len(taken)
                continue
            size, found, after = rest.partition(b"\r\n")
            if not found:
                break
            try:
                length = int(size.partition(b";")[0], 16)
            except ValueError:
                length = 0
            if length == 0:
                yield at, payload
                return
            rest, left = after, length + 2
        yield at, payload
