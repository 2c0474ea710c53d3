"""Tells the special tokens of a chat template from text of messages that only looks like them.

Tokenizers find special tokens (`<|im_end|>`) in text, so a message that holds such a text could end its own turn. If a
conversation may hold one, it is rendered with marks, which are private-use characters that it does not use:

1. In messages and variables, each text of a special token is put between two marks, and where a message could become a
   part of one, together with what stands next to it, another mark separates them. The texts themselves stay whole: a
   template may look for them.
2. In the rendered prompt, each special token without marks is the template's. It is spelled in a way that no client can
   guess (`Spellings`), and the marks are removed.

`SpecialTokens` encodes the result: to it, only these spellings are special tokens. Other conversations are rendered and
encoded as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

PRIVATE_USE = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
"""First and last of the characters that Unicode leaves to private agreements."""
ESCAPED = re.compile(r"\\u[ef][0-9a-f]{3}|\\U00(?:0f|10)[0-9a-f]{4}|\\udb[89a-f][0-9a-f]\\ud[c-f][0-9a-f]{2}")
"""Such a character as `_escapes` writes it."""
NOTHING = "(?!)"
"""A regular expression that matches nowhere."""
WORD = re.compile(r"[\w-]*")
"""What a name, or the value of a switch, looks like. Templates compare these, so they keep no mark at their ends."""


class Spellings(msgspec.Struct, array_like=True):
    """How the special tokens of a template are spelled in prompts that hold such texts of clients, too."""

    pattern: str
    """Matches the text of each special token."""
    by_text: dict[str, str]
    end: str
    """Ends a prompt in which special tokens are spelled like this."""
    is_always: bool
    """Every conversation is rendered like this: its messages may become special tokens that they do not spell."""


class Marks(NamedTuple):
    """Characters that a conversation does not use."""

    around: Mapping[str, tuple[str, str]]
    """Two for the text of each special token in its messages. A template may cut off one of them with a part of the
    message, and may put a special token of its own next to one."""
    edge: str

    def removed_from(self, text: str) -> str:
        """Return a text without marks."""
        every = (self.edge, *chain.from_iterable(self.around.values()))
        if "\\" in text:
            for escape in chain.from_iterable(map(_escapes, every)):
                text = text.replace(escape, "")
        return text.translate(dict.fromkeys(map(ord, every)))


class SpecialText:
    """Marks messages, and spells what a template makes of them."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._pattern = re.compile(spellings.pattern)
        texts = spellings.by_text.keys()
        self._heads = {text[:2] for text in texts}
        """A text without any of them holds no special token, which is quicker to see."""
        self._beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        self._endings = {text[start:] for text in texts for start in range(1, len(text))}
        self._all = "\0".join(texts)
        self._characters = {*spellings.pattern}
        self._longest = max(map(len, texts), default=0)

    def marks_for(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> Marks | None:
        """Return marks for a conversation and the variables of a template; None if it can be rendered as it is.

        Raises:
            ValueError: it uses all private-use characters.
        """
        texts = [text for message in messages for text in _client_texts(message)]
        texts += texts_of(variables)
        found = {special for text in texts for special in self._found_in(text)}
        if not (found or self._spellings.is_always or any(True in self._edges(text) for text in texts)):
            return None
        used = self._characters.union(*texts)
        unused = unused_characters(used, texts)
        try:
            return Marks({text: (next(unused), next(unused)) for text in found}, next(unused))
        except StopIteration as error:
            raise ValueError("the messages use all private-use characters of Unicode; some must be left") from error

    def marked(self, messages: Iterable[Mapping[str, Any]], marks: Marks) -> list[dict[str, Any]]:
        """Return messages with marks. A role is one of a few, of which templates make special tokens."""
        return [
            {name: self._marked_field(name, value, marks) for name, value in message.items()} for message in messages
        ]

    def marked_variables(self, variables: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        """Return variables with marks in their values."""
        return {name: self._marked_value(value, marks) for name, value in variables.items()}

    def spelled(self, prompt: str, marks: Marks) -> str:
        """Return a prompt of marked messages without marks, in which the template's special tokens are spelled."""

        def spelling(match: re.Match[str]) -> str:
            before, after = marks.around.get(match[0], ("", ""))
            is_of_client = before and (
                prompt.endswith((before, *_escapes(before)), 0, match.start())
                or prompt.startswith((after, *_escapes(after)), match.end())
            )
            return match[0] if is_of_client else self._spellings.by_text[match[0]]

        return marks.removed_from(self._pattern.sub(spelling, prompt)) + self._spellings.end

    def _marked_field(self, name: str, value: Any, marks: Marks) -> Any:
        if name == "role":
            return value
        return self._marked(value, marks) if isinstance(value, str) else self._marked_value(value, marks)

    def _marked_value(self, value: Any, marks: Marks) -> Any:
        """Return a JSON value with marks in its texts, but none at the ends of words."""
        if isinstance(value, str):
            is_word = WORD.fullmatch(value) is not None and not self._found_in(value)
            return value if is_word else self._marked(value, marks)
        if isinstance(value, dict):
            return {self._marked_value(name, marks): self._marked_value(each, marks) for name, each in value.items()}
        return [self._marked_value(each, marks) for each in value] if isinstance(value, list) else value

    def _marked(self, text: str, marks: Marks) -> str:
        if marks.around:
            text = self._pattern.sub(lambda match: match[0].join(marks.around[match[0]]), text)
        may_complete, may_begin = self._edges(text)
        core = text.strip()
        before, after = text.split(core, 1) if core else (text, "")
        return f"{before}{marks.edge if may_complete else ''}{core}{marks.edge if may_begin else ''}{after}"

    def _found_in(self, text: str) -> set[str]:
        if not any(head in text for head in self._heads):
            return set()
        return {match[0] for match in self._pattern.finditer(text)}

    def _edges(self, text: str) -> tuple[bool, bool]:
        """Whether text around a text may complete a special token at its beginning, and at its end.

        Space around it does not count: templates may remove it.
        """
        text = text.strip()
        if text and len(text) < self._longest and text in self._all:
            return True, True
        lengths = range(1, min(self._longest, len(text) + 1))
        may_complete = any(text[:length] in self._endings for length in lengths)
        return may_complete, any(text[-length:] in self._beginnings for length in lengths)


def _client_texts(message: Mapping[str, Any]) -> Iterator[str]:
    return (text for name, value in message.items() if name != "role" for text in texts_of(value))


def texts_of(value: Any) -> Iterator[str]:
    """Yield the texts of a JSON value, the names in its objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value:
            yield from texts_of(each)
        for each in value.values() if isinstance(value, dict) else ():
            yield from texts_of(each)


def unused_characters(used: Collection[str], texts: Iterable[str]) -> Iterator[str]:
    """Yield the private-use characters that are not among some characters, nor escaped in some texts."""
    escaped = {match[0] for text in texts for match in ESCAPED.finditer(text)}
    for first, last in PRIVATE_USE:
        for mark in map(chr, range(first, last + 1)):
            if mark not in used and escaped.isdisjoint(_escapes(mark)):
                yield mark


def _escapes(mark: str) -> tuple[str, str]:
    """Return how a mark is written by a template that prints a list or an object, and in JSON of ASCII alone."""
    return ascii(mark)[1:-1], json.dumps(mark)[1:-1]


def pattern_of(texts: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of some texts, in time linear in its length."""
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[:1], []).append(text[1:])
    may_end = rests.pop("", None) is not None
    branches = [re.escape(first) + pattern_of(others) for first, others in rests.items()]
    if not branches:
        return "" if may_end else NOTHING
    if len(branches) == 1 and not may_end:
        return branches[0]
    return f"(?:{'|'.join(branches)})" + ("?" if may_end else "")
