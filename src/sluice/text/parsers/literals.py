"""Arguments of calls as Python or Gemma writes them, read as JSON while they come.

Names stand before their values without quotes: `city='Ulm', days=[1, 2]`. A value becomes JSON by the type that the
tool's schema gives it, so a number in the place of a text is one, and the other way round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sluice.text.constraints.value_types import ALL, dumped, json_of
from sluice.text.parsers.argument_types import ArgumentTypes, object_of
from sluice.text.parsers.events import ArgumentsDelta, CallEnded, Event
from sluice.text.parsers.parsing import Source, Steps, Waits, comes, more, size_of, space_ahead

T = TypeVar("T")
Parts = Generator[str | None, None, T]
"""A part of a reader: yields JSON, None where it needs more text, and returns what it found."""
NAME = re.compile(r"[^\s=:,'\"()\[\]{}<>]{0,512}")
KEY = re.compile(r"[^=:,'\"()\[\]{}<>\n]{0,512}")
"""A name in an object within a value, where no text is searched for it."""
NAMELESS = re.compile(r"[\d'\"\[{-]")
"""What a value begins with that stands without its name."""
WORD = re.compile(r"[^,()\[\]{}\n<]{0,4096}")
"""A value without quotes: a number, a constant, or a text whose quotes are missing."""
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|\n|.)", re.DOTALL)
LONGEST_ESCAPE, MOST_CODE = 10, 0x10FFFF
CONTROL: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
CLOSING: Mapping[str, str] = {"[": "]", "(": ")"}
MAX_DEPTH = 64
"""Lists and objects in each other."""


@dataclass(frozen=True, slots=True)
class Notation:
    """How a format writes arguments."""

    assign: str
    """What stands between a name and its value."""
    end: str
    """What stands behind the last value."""
    follow: tuple[str, ...]
    """What may follow the end, if not the answer ends there."""
    bare_quote: str
    """What stands around a text in which nothing is escaped, so that it may hold this too: it ends the text only where
    what follows is right. Texts in double quotes have escapes, as in JSON."""
    begin: str = ""
    """What stands between the name and the arguments of another call, which may follow too."""
    has_escapes: bool = False
    """There are escapes between bare quotes after all."""


def read_literals(source: Source, index: int, types: ArgumentTypes, notation: Notation) -> Steps[None]:
    """Read the arguments of a call up to their end, and yield them as JSON, and the end of the call.

    Args:
        index: of the call.
        types: of the arguments.
    """
    reader = _Reader(source, types, notation)
    is_whole = yield from _as_events(reader.arguments(), partial(ArgumentsDelta, index))
    yield CallEnded(index, is_whole)


def read_python_object(source: Source, event: Callable[[str], Event], types: ArgumentTypes) -> Steps[bool]:
    """Read an object as Python writes it, whose bracket comes next; return whether it is whole."""
    source.take(1)
    reader = _Reader(source, types, Notation(":", "}", ("<",), "'", has_escapes=True))
    return (yield from _as_events(reader.members(":", "}", 1, is_typed=True), event))


def _as_events(reading: Parts[bool], event: Callable[[str], Event]) -> Steps[bool]:
    """Yield what a reader yields as events; return whether it is a whole object."""
    parts: list[str] = []
    while True:
        try:
            part = next(reading)
        except StopIteration as end:
            return bool(end.value) and object_of("".join(parts)) is not None
        if part is None:
            yield None
        elif part:
            parts.append(part)
            yield event(part)


class _Reader:
    def __init__(self, source: Source, types: ArgumentTypes, notation: Notation) -> None:
        self._source, self._types, self._notation = source, types, notation
        self._nameless = False
        """The last argument stands without its name, so the next one may, too."""

    def arguments(self) -> Parts[bool]:
        """Read all arguments; return whether they are whole. Some models write them as one object."""
        source, notation = self._source, self._notation
        source.take((yield from space_ahead(source)))
        first = next(iter(self._types.names), "")
        if not source.starts_with("{") or "object" in self._types.of(first):
            return (yield from self.members(notation.assign, notation.end, 0, is_typed=True))
        source.take(1)
        is_whole = yield from self.members(":", "}", 1, is_typed=True)
        return is_whole and (yield from self._ends(notation.end, has_items=True))

    def members(self, assign: str, end: str, depth: int, *, is_typed: bool = False) -> Parts[bool]:
        """Read the members of an object and its end, which is meant where nothing more comes."""
        source = self._source
        yield "{"
        given: set[str] = set()
        while True:
            if (yield from self._ends(end, has_items=bool(given))):
                yield "}"
                return True
            name = yield from self._name(assign, depth, given)
            if name is None:
                return False
            yield f"{', ' if given else ''}{dumped(name)}: "
            given.add(name)
            source.take((yield from space_ahead(source)))
            types = self._types.of(name) if is_typed else ALL
            if not (yield from self._value(types, depth, lambda at: self._ends_member(at, end, depth))):
                return False

    def _items(self, end: str, depth: int) -> Parts[bool]:
        """Read the items of a list and its end."""
        yield "["
        count = 0
        while True:
            if (yield from self._ends(end, has_items=bool(count))):
                yield "]"
                return True
            yield ", " if count else ""
            count += 1
            if not (yield from self._value(ALL, depth, lambda at: self._comes_one_of(at, ",", end))):
                return False
            if not (yield from self._comes_one_of(0, ",", end, "<")):
                return False

    def _ends(self, end: str, *, has_items: bool) -> Waits[bool]:
        """Read what separates two values, and the end if it comes; return whether there are no more."""
        source = self._source
        while True:
            source.take((yield from space_ahead(source)))
            if source.starts_with(end):
                source.take(len(end))
                return True
            if not source.starts_with(","):
                break
            source.take(1)
        if not has_items or source.was_cut:
            return False
        for text in self._notation.follow:  # the end is missing
            if text.startswith("<") and (yield from comes(source, text)):
                return True
        return not source.size

    def _name(self, assign: str, depth: int, given: set[str]) -> Waits[str | None]:
        """Read the name of a member and what stands behind it; None if there is none."""
        source = self._source
        quote = (yield from self._quote()) if assign == ":" else ""
        if quote:
            source.take(len(quote))
            text, _ = yield from _collected(self._text(quote, lambda at: self._comes_one_of(at, assign)))
            source.take((yield from space_ahead(source)))
            if not (yield from comes(source, assign)):
                return None
            source.take(len(assign))
            return str(json.loads(f'"{text}"'))
        size = yield from self._name_size(0, assign, KEY if depth else NAME)
        self._nameless = not size and not depth
        if size:
            return source.take(size + len(assign))[:size].strip()
        left = [name for name in self._types.names if name not in given]
        return left[0] if left and not depth and source.match(NAMELESS) else None

    def _name_size(self, at: int, assign: str, pattern: re.Pattern[str] = NAME) -> Waits[int]:
        """Return how many characters a name has that comes at a place, with the space behind it; 0 if none does."""
        source = self._source
        for name in sorted(self._types.names, key=len, reverse=True):
            if not NAME.fullmatch(name) and (yield from comes(source, name + assign, at)):
                return len(name)
        size = yield from size_of(source, pattern, at)
        space = yield from space_ahead(source, at + size)
        return size + space if size and (yield from comes(source, assign, at + size + space)) else 0

    def _value(self, types: frozenset[str], depth: int, follows: Callable[[int], Waits[bool]]) -> Parts[bool]:
        """Read a value; return whether it is whole.

        Args:
            follows: whether at a place stands what may follow it.
        """
        source = self._source
        quote = yield from self._quote()
        if quote:
            source.take(len(quote))
            return (yield from self._quoted(quote, types, follows))
        opening = source.peek()[:1]
        if opening and opening in "{[(":
            source.take(1)
            if depth == MAX_DEPTH:
                return False
            if opening == "{":
                return (yield from self.members(":", "}", depth + 1))
            return (yield from self._items(CLOSING[opening], depth + 1))
        word = source.take((yield from size_of(source, WORD, 0))).strip()
        if not word or (source.was_cut and not source.size):
            return False
        yield json_of(word, types)
        return True

    def _quoted(self, quote: str, types: frozenset[str], follows: Callable[[int], Waits[bool]]) -> Parts[bool]:
        """Read a text, which is another value where the schema allows no text."""
        text = self._text(quote, follows)
        if "string" in types:
            yield '"'
            is_whole = yield from text
            yield '"' if is_whole else ""
            return is_whole
        content, is_whole = yield from _collected(text)
        if is_whole:
            yield json_of(json.loads(f'"{content}"'), types)
        return is_whole

    def _text(self, quote: str, follows: Callable[[int], Waits[bool]]) -> Parts[bool]:
        """Read a text and its end, and yield it as JSON has it between quotes; return whether it is whole."""
        source, is_bare = self._source, quote == self._notation.bare_quote
        markers = (quote,) if is_bare and not self._notation.has_escapes else (quote, "\\")
        while True:
            at, marker = source.find(markers, is_text_at_end=False)
            if at:
                yield dumped(source.take(at))[1:-1]
            elif marker == "\\":
                yield (yield from self._escape())
            elif marker:
                if not is_bare or (yield from follows(len(quote))):
                    source.take(len(quote))
                    return True
                yield dumped(source.take(len(quote)))[1:-1]
            elif source.has_ended:
                source.take()  # of a quote that was cut off
                return False
            else:
                yield None

    def _escape(self) -> Waits[str]:
        """Read what a backslash begins, and return it as JSON."""
        source = self._source
        while source.size < LONGEST_ESCAPE and (yield from more(source)):
            pass
        found = source.match(ESCAPE)
        if found is None:
            source.take(1)
            return ""
        escape = source.take(len(found[0]))
        kind, digits = escape[1], escape[2:]
        if source.was_cut and kind in "uxU" and not digits:
            return ""
        if kind == "u" and digits:
            return escape
        if kind in "xU" and digits and int(digits, 16) <= MOST_CODE:
            text = chr(int(digits, 16))
        elif kind in "'\"\\/\n":
            text = kind.strip("\n")
        else:
            text = CONTROL.get(kind, escape)
        return dumped(text)[1:-1]

    def _ends_member(self, at: int, end: str, depth: int) -> Waits[bool]:
        """Return whether at a place stands what follows the value of a member."""
        source = self._source
        if depth:
            return (yield from self._comes_one_of(at, ",", end))
        at += yield from space_ahead(source, at)
        if (yield from comes(source, ",", at)):
            at += 1 + (yield from space_ahead(source, at + 1))
            is_cut = at + (yield from size_of(source, NAME, at)) >= source.size
            is_last = is_cut or (yield from self._comes_one_of(at, end))
            if is_last or (yield from self._name_size(at, self._notation.assign)):
                return True
            return bool(self._nameless and source.match(NAMELESS, at))
        if not (yield from comes(source, end, at)):
            return at >= source.size
        at += len(end)
        if (yield from self._comes_one_of(at, *self._notation.follow)):
            return True
        size = yield from size_of(source, NAME, at)
        return bool(size and self._notation.begin) and (yield from comes(source, self._notation.begin, at + size))

    def _comes_one_of(self, at: int, *texts: str) -> Waits[bool]:
        """Return whether one of some texts comes at a place, perhaps behind space, or the answer ends before it."""
        source = self._source
        at += yield from space_ahead(source, at)
        for text in texts:
            if (yield from comes(source, text, at)):
                return True
        rest = source.peek(at)
        return source.has_ended and any(text.startswith(rest) for text in texts)

    def _quote(self) -> Waits[str]:
        """Return the quote that comes next; empty if none does."""
        for quote in dict.fromkeys((self._notation.bare_quote, '"', "'")):
            if (yield from comes(self._source, quote)):
                return quote
        return ""


def _collected(parts: Parts[T]) -> Waits[tuple[str, T]]:
    """Return all that a reader yields, and what it returns."""
    found: list[str] = []
    while True:
        try:
            part = next(parts)
        except StopIteration as end:
            return "".join(found), end.value
        if part is None:
            yield None
        else:
            found.append(part)
