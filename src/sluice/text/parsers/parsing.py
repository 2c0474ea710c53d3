"""Parsers of answers that arrive in pieces.

A format is written as a generator that reads a `Source` as if it were whole: it yields events, and None where it needs
more text (`more`). So the events' sum cannot depend on where the text was cut, as long as the generator decides by what
it has read alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from sluice.text.parsers.events import Event, TextDelta, merged

T = TypeVar("T")
Steps = Generator[Event | None, None, T]
"""A part of a parser: yields events, None where it needs more text, and returns what it found."""
Waits = Generator[None, None, T]
"""A part of a parser that only looks: yields None where it needs more text, and returns what it found."""


class AnswerParser(Protocol):
    """Makes events of one answer's text."""

    def push(self, text: str) -> list[Event]:
        """Add a piece of the text, and return what is certain by now."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Return the rest, when the text has ended. It is called once, and nothing after it.

        Args:
            is_cut: the model had not ended it.
        """
        ...


class TextOnly:
    """The parser of an answer that is text as it stands."""

    def push(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        return []


CUT_MARKER = 5
"""Characters of a marker that are not taken for text where the answer was cut off."""


class Source:
    """The text of an answer that was not read yet, as far as it has come."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.has_ended = False
        """No more text will come."""
        self.was_cut = False
        """It ended where the model had not ended it."""

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    @property
    def size(self) -> int:
        """Characters that have come and were not read."""
        return len(self._text) - self._at

    def take(self, count: int | None = None) -> str:
        """Read so many characters, or all that have come."""
        end = len(self._text) if count is None else self._at + count
        taken, self._at = self._text[self._at : end], end
        return taken

    def peek(self, at: int = 0) -> str:
        """Return what has come from a place of the rest on, without reading it."""
        return self._text[self._at + at :]

    def put_back(self, text: str) -> None:
        """Let what was read last, before any more text came, be the next text again."""
        self._at -= len(text)

    def starts_with(self, text: str, at: int = 0) -> bool:
        return self._text.startswith(text, self._at + at)

    def may_start_with(self, text: str, at: int = 0) -> bool:
        """Whether the rest so far is a beginning of a text, which it is not yet all of."""
        rest = self._text[self._at + at : self._at + at + len(text)]
        return not self.has_ended and len(rest) < len(text) and text.startswith(rest)

    def match(self, pattern: re.Pattern[str], at: int = 0, most: int | None = None) -> re.Match[str] | None:
        """Match a pattern at a place of the rest, looking at so many characters, or at all that have come."""
        begin = self._at + at
        return pattern.match(self._text, begin, len(self._text) if most is None else begin + most)

    def search(self, pattern: re.Pattern[str]) -> int:
        """Return where in the rest a pattern is found first; `size` if nowhere."""
        found = pattern.search(self._text, self._at)
        return self.size if found is None else found.start() - self._at

    def find(self, markers: Sequence[str], *, is_text_at_end: bool = True) -> tuple[int, str]:
        """Return where the first of some markers begins, and which; the longest of those that begin there.

        If there is none, the place is where one may begin that has not come whole, and the marker is empty.

        Args:
            is_text_at_end: at the end of the answer, the beginning of a marker is none, unless it is long and the
                answer was cut off.
        """
        places = [(at, -len(marker), marker) for marker in markers if (at := self._text.find(marker, self._at)) >= 0]
        if places:
            at, _, marker = min(places)
            return at - self._at, marker
        if self.has_ended and is_text_at_end and not self.was_cut:
            return self.size, ""
        longest = min(max(map(len, markers), default=1) - 1, self.size)
        shortest = CUT_MARKER if self.has_ended and is_text_at_end else 1
        for length in range(longest, shortest - 1, -1):
            if any(marker.startswith(self._text[len(self._text) - length :]) for marker in markers):
                return self.size - length, ""
        return self.size, ""


def more(source: Source) -> Waits[bool]:
    """Wait for more text; return whether some may have come."""
    if source.has_ended:
        return False
    yield None
    return True


SPACE = re.compile(r"\s*")


class Found(NamedTuple):
    """Where `until` stopped."""

    marker: str
    """It was read too. Empty: the answer ended."""
    space: str
    """Space before the marker."""
    has_text: bool
    """There was text before it that is not only space."""


def until(
    source: Source, markers: Sequence[str], event: Callable[[str], Event] = TextDelta, space: str = ""
) -> Steps[Found]:
    """Read text up to one of some markers, and yield it as events, but for the space before the marker.

    Args:
        markers: none of which is a part of another one.
        space: precedes the text, and is a part of it.
    """
    has_text = False
    while True:
        at, marker = source.find(markers)
        text = space + source.take(at)
        kept = text.rstrip()
        space = text[len(kept) :]
        if kept:
            has_text = True
            yield event(kept)
        if marker:
            return Found(source.take(len(marker)), space, has_text)
        if not (yield from more(source)):
            cut = source.take()  # a marker that was cut off
            return Found("", "" if cut else space, has_text)


def space_ahead(source: Source, at: int = 0) -> Waits[int]:
    """Return how many characters of space come next, without reading them; it waits for what follows them.

    Args:
        at: where in the rest to look.
    """
    while True:
        found = source.match(SPACE, at)
        assert found is not None, "it matches everywhere"
        if at + len(found[0]) < source.size or not (yield from more(source)):
            return len(found[0])


def comes(source: Source, text: str, at: int = 0) -> Waits[bool]:
    """Return whether a text comes next, without reading it.

    Args:
        at: where in the rest to look.
    """
    while source.may_start_with(text, at):
        yield from more(source)
    return source.starts_with(text, at)


def size_of(source: Source, pattern: re.Pattern[str], at: int = 0) -> Waits[int]:
    """Return how many characters a pattern matches at a place of the rest, when what follows them has come."""
    while True:
        found = source.match(pattern, at)
        size = 0 if found is None else len(found[0])
        if at + size < source.size or not (yield from more(source)):
            return size


def place_of(source: Source, text: str, most: int, begin: int = 0) -> Waits[int]:
    """Return where in the rest a text begins, without reading; -1 if that is not within so many characters.

    Args:
        begin: it begins there, or later.
    """
    while True:
        at = source.peek()[: most + len(text)].find(text, begin)
        if at >= 0 or source.size >= most + len(text) or not (yield from more(source)):
            return at


class SteppedParser:
    """Runs the generator of a format.

    Args:
        steps: makes the generator.
    """

    def __init__(self, steps: Callable[[Source], Steps[None]]) -> None:
        self._source = Source()
        self._steps = steps(self._source)

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        self._source.feed(text)
        return merged(self._run())

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        self._source.has_ended, self._source.was_cut = True, is_cut
        return merged(self._run())

    def _run(self) -> Iterator[Event]:
        for event in self._steps:
            if event is None:
                return
            yield event
