"""Arguments of calls as tagged texts, which several formats write in the place of JSON.

A value becomes JSON by the type that the tool's schema gives it. What may only be a text is sent as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from dataclasses import dataclass
from functools import partial

from sluice.text.constraints.value_types import json_of
from sluice.text.parsers.argument_types import ArgumentTypes
from sluice.text.parsers.calls import (
    FENCE,
    LONGEST_HEAD,
    Calls,
    fence_ahead,
    read_json_calls,
    skip_texts,
    text_and_calls,
)
from sluice.text.parsers.events import ArgumentsDelta, CallEnded
from sluice.text.parsers.json_text import json_events
from sluice.text.parsers.parsing import Source, Steps, Waits, comes, place_of, space_ahead

ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class Tags:
    """How a format writes arguments."""

    begin: str
    """What begins another call."""
    name: str
    """What stands before the name of an argument."""
    name_end: str
    values: tuple[str, ...]
    """What may stand before a value, perhaps behind space."""
    value_end: str
    call_ends: tuple[str, ...]
    """What ends a call, from inside to outside."""
    in_lines: bool = False
    """A line break behind the first tag of a value, and one before its end, belong to the tags."""

    @property
    def value_ends(self) -> tuple[str, ...]:
        """What may end a value: its own tag, or what follows it where that is missing."""
        own = (f"\n{self.value_end}", self.value_end) if self.in_lines else (self.value_end,)
        return (*own, f"\n{self.name}", *(f"\n{end}" for end in self.call_ends))

    def follow(self, end: str) -> tuple[str, ...]:
        """Return what stands behind an end that is one, if the answer does not end there."""
        if end == self.value_end:
            return (self.name, *self.call_ends, self.begin)
        return (*self.call_ends[self.call_ends.index(end) + 1 :], self.begin)


@dataclass(frozen=True, slots=True)
class Head:
    """How a format begins a call that names its function in a tag, and what ends the section that it may stand in."""

    begin: str
    invoke: str
    """What stands before the name, perhaps behind `begin`."""
    name_end: str
    end: str
    is_spaced: bool = False
    """Space next to the name belongs to nothing."""


def read_invoked(source: Source, calls: Calls, head: Head, tags: Tags) -> Steps[None]:
    """Read an answer with calls whose heads are of this form."""

    def read_call(marker: str) -> Steps[bool]:
        at = 0
        if marker == head.begin:
            if (yield from read_objects(source, calls, head.end)):
                return True
            at = yield from space_ahead(source)
            if not (yield from comes(source, head.invoke, at)):
                return False
            at += len(head.invoke)
        end = yield from place_of(source, head.name_end, at + LONGEST_HEAD)
        name = source.peek()[at:end]
        begun = calls.begin(name.strip() if head.is_spaced else name) if end >= 0 else None
        if begun is None:
            return False
        source.take(end + len(head.name_end))
        yield begun
        yield from read_arguments(source, begun.index, calls.types(begun.name), tags)
        yield from skip_texts(source, head.end)
        return True

    yield from text_and_calls(source, (head.begin, head.invoke), read_call)


def read_objects(source: Source, calls: Calls, end: str) -> Steps[bool]:
    """Read calls that are JSON objects, as some models write them between the tags, and the closing one.

    Returns:
        False: there is none, and nothing was read.
    """
    at = yield from fence_ahead(source)
    is_call = yield from read_json_calls(source, calls, at, ARGUMENTS, ",")
    if is_call:
        yield from skip_texts(source, FENCE, end)
    return is_call


def read_arguments(source: Source, index: int, types: ArgumentTypes, tags: Tags) -> Steps[None]:
    """Read the arguments of a call and its end, and yield them as JSON. Of two of one name the first counts.

    Args:
        index: of the call.
        types: of the arguments.
    """
    space = yield from space_ahead(source)
    if source.starts_with("{", space):  # some models write JSON between the tags
        source.take(space)
        read = yield from json_events(source, partial(ArgumentsDelta, index), types)
        yield from skip_texts(source, tags.call_ends[0])
        yield CallEnded(index, read.is_valid)
        return
    given: set[str] = set()
    has_closed = True
    while has_closed and (name := (yield from _read_name(source, types.names, tags))) is not None:
        is_new = name not in given
        if is_new:
            yield ArgumentsDelta(index, f"{', ' if given else '{'}{json.dumps(name, ensure_ascii=False)}: ")
        given.add(name)
        value = _Value(types.of(name), types.names.keys() - given, tags)
        for event in value.read(source):
            if event is None or is_new:
                yield None if event is None else ArgumentsDelta(index, event)
        has_closed = value.has_closed
    is_complete = has_closed and (yield from _ends(source, tags, has_arguments=bool(given)))
    if is_complete:
        yield ArgumentsDelta(index, "}" if given else "{}")
    elif _is_cut_tag(source, tags):
        source.take()
    yield CallEnded(index, is_complete)


def _read_name(source: Source, names: Collection[str], tags: Tags) -> Steps[str | None]:
    """Read what stands before the value of an argument, and return its name; None if none comes next."""
    space = yield from space_ahead(source)
    if not (yield from comes(source, tags.name, space)):
        return None
    begin = space + len(tags.name)
    name = yield from _odd_name(source, begin, names, tags)
    if name is None:
        end = yield from place_of(source, tags.name_end, begin + LONGEST_HEAD, begin)
        if end < 0:
            return None
        name = source.take(end + len(tags.name_end))[begin : -len(tags.name_end)].strip()
    else:
        source.take(begin + len(name) + len(tags.name_end))
    yield from _read_tag(source, tags.values)
    return name


def _read_tag(source: Source, tags: Collection[str]) -> Steps[None]:
    """Read one of some tags, if one comes next behind space."""
    space = (yield from space_ahead(source)) if tags else 0
    for tag in tags:
        if (yield from comes(source, tag, space)):
            source.take(space + len(tag))
            return
    if source.has_ended and any(tag.startswith(source.peek()[space:]) for tag in tags):
        source.take()  # of a tag that was cut off


def _odd_name(source: Source, begin: int, names: Collection[str], tags: Tags) -> Waits[str | None]:
    """Return the name that begins at a place, if it is one that ends elsewhere than before the first end of a name."""
    odd = [name for name in names if tags.name_end in name or name != name.strip()]
    for name in sorted(odd, key=len, reverse=True):
        if (yield from comes(source, f"{name}{tags.name_end}", begin)):
            return name
    return None


def _is_cut_tag(source: Source, tags: Tags) -> bool:
    """Return whether the answer was cut off within a tag that comes next."""
    rest = source.peek().strip()
    is_cut = rest.startswith(tags.name) or any(tag.startswith(rest) for tag in (tags.name, *tags.call_ends))
    return source.was_cut and is_cut


def _ends(source: Source, tags: Tags, *, has_arguments: bool) -> Steps[bool]:
    """Read the end of a call, and return whether it is complete: an end that is missing was meant."""
    space = yield from space_ahead(source)
    if (yield from comes(source, tags.call_ends[0], space)):
        source.take(space + len(tags.call_ends[0]))
        return True
    if space == source.size:
        return has_arguments and not source.was_cut
    if _is_cut_tag(source, tags) or (yield from comes(source, tags.name, space)):
        return False
    return has_arguments or (yield from comes(source, tags.call_ends[-1], space))


class _Value:
    """Reads an argument's value and its end.

    Tags that stand in a value, and end it nowhere, are text; one that is missing is known by what must follow it.

    Args:
        types: that the value may have.
        next_names: of arguments that may follow.
    """

    def __init__(self, types: frozenset[str], next_names: Collection[str], tags: Tags) -> None:
        self._types, self._next_names, self._tags = types, next_names, tags
        self.has_closed = False

    def read(self, source: Source) -> Generator[str | None, None, None]:
        """Yield the JSON of the value in parts, and None where more text is needed."""
        if self._tags.in_lines:
            yield from comes(source, "\n")
            if source.starts_with("\n"):
                source.take(1)
        if self._types == {"string"}:
            yield '"'
            for part in self._parts(source):
                yield None if part is None else json.dumps(part, ensure_ascii=False)[1:-1]
            if self.has_closed:
                yield '"'
            return
        parts: list[str] = []
        for part in self._parts(source):
            if part is None:
                yield None
            else:
                parts.append(part)
        if parts or self.has_closed:
            yield json_of("".join(parts), self._types)

    def _parts(self, source: Source) -> Generator[str | None, None, None]:
        """Yield the text of the value in parts."""
        while not self.has_closed:
            at, marker = source.find(self._tags.value_ends, is_text_at_end=False)
            if at:
                yield source.take(at)
            elif marker:
                self.has_closed = yield from self._closes(source, marker)
                if not self.has_closed:
                    yield source.take(len(marker))
                elif self._tags.value_end in marker:
                    source.take(len(marker))
            elif source.has_ended:
                source.take()  # of an end that was cut off
                return
            else:
                yield None

    def _closes(self, source: Source, marker: str) -> Waits[bool]:
        """Return whether a marker that comes next ends the value."""
        tags = self._tags
        if marker == f"\n{tags.name}":
            if (yield from _odd_name(source, len(marker), self._next_names, tags)) is not None:
                return True
            end = yield from place_of(source, tags.name_end, LONGEST_HEAD, len(marker))
            return source.peek()[len(marker) : max(end, 0)].strip() in self._next_names
        at = len(marker)
        space = yield from space_ahead(source, at)
        if at + space == source.size:
            return True
        if marker == f"\n{tags.value_end}" and source.starts_with("\n", at):
            return True
        follow = tags.follow(marker.strip())
        for text in follow:
            if (yield from comes(source, text, at + space)):
                return True
        rest = source.peek()[at + space :]
        return source.has_ended and any(text.startswith(rest) for text in follow)
