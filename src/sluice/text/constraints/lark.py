"""Shapes as grammars in llguidance's form: a Lark text, and further grammars that it refers to by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.members import members_shape
from sluice.text.constraints.shapes import (
    AnyOf,
    Choice,
    FreeText,
    Grammar,
    Joined,
    JsonSchema,
    Literal,
    Mark,
    Members,
    Regex,
    Repeated,
    Sequence,
    Shape,
    Tag,
    Tagged,
    TextUntil,
)

TEXT = "TEXT: /(.|\\n)*/"
"""The terminal for any text."""
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that Lark's strings cannot hold."""


class LarkWriter:
    """Writes one shape as a list of grammars, the first of which is the start.

    Args:
        schema_of: returns a schema with its options, as llguidance takes it.
        lark_of: returns the Lark text of a user's grammar.
        regex_of: returns a user's regular expression, as it stands between the slashes of Lark.
    """

    def __init__(
        self,
        schema_of: Callable[[JsonSchema], dict[str, Any]],
        lark_of: Callable[[Grammar], str],
        regex_of: Callable[[Regex], str],
    ) -> None:
        self._schema_of, self._lark_of, self._regex_of = schema_of, lark_of, regex_of
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []

    def grammars(self, shape: Shape) -> list[dict[str, Any]]:
        if isinstance(shape, JsonSchema):
            return [{"json_schema": self._schema_of(shape)}]
        if isinstance(shape, Grammar):
            return [{"lark_grammar": self._lark_of(shape)}]
        start = self._expression(shape)
        rules = ["%llguidance {}", f"start: {start}", *self._rules, TEXT]
        return [{"lark_grammar": "\n".join(rules)}, *self._grammars]

    def _expression(self, shape: Shape) -> str:
        """Return an expression for a shape: a name, a string, a regular expression, or a group of these."""
        match shape:
            case JsonSchema():
                return self._reference({"json_schema": self._schema_of(shape)})
            case Grammar():
                return self._reference({"lark_grammar": self._lark_of(shape)})
            case Regex():
                return f"/{self._regex_of(shape)}/"
            case Choice(options, place):
                return self._choice(options, place)
            case Members():
                return self._expression(members_shape(shape, self._schema_of(shape.object)))
            case Literal(text):
                return mark(text)
            case FreeText(without):
                return self._text_without(without) if without else "TEXT"
            case TextUntil(end, at_most):
                return self._until(end) if at_most is None else self._within(at_most, end)
            case Sequence(items):
                return f"({' '.join(map(self._expression, items))})"
            case AnyOf(items):
                return f"({' | '.join(map(self._expression, items))})"
            case Repeated(item, separator, at_most):
                return self._repeated(self._expression(item), separator, at_most)
            case Joined(items, separator):
                return self._joined(items, separator)
            case Tag(begin, content, end):
                return f"({mark(begin)} {self._tag_rest(content, end)})"
            case Tagged():
                return self._tagged(shape)

    def _reference(self, grammar: dict[str, Any]) -> str:
        """Add a grammar of its own, and return a reference to it."""
        name = f"part_{len(self._grammars)}"
        self._grammars.append({"name": name, **grammar})
        return f"@{name}"

    def _rule(self, body: str, attributes: str = "") -> str:
        """Add a rule, and return its name."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _choice(self, options: tuple[str, ...], place: str) -> str:
        if not options or not all(options):
            raise ConstraintError(place, f"a choice must be a non-empty list of non-empty texts, got {list(options)!r}")
        return f"({' | '.join(map(mark, dict.fromkeys(options)))})"

    def _until(self, end: Mark) -> str:
        """Return an expression for text up to an end. The rule is lazy: it ends with the first one."""
        if isinstance(end, int):
            return f"TEXT {mark(end)}"
        return self._rule(f"TEXT {mark(end)}", "[lazy]")

    def _within(self, at_most: int, end: Mark) -> str:
        """Return an expression for text of so many tokens up to an end, which is forced behind them."""
        text = self._text_without(end) if isinstance(end, str) else "TEXT"
        return f"{self._rule(text, f'[max_tokens={at_most}]')} {mark(end)}"

    def _text_without(self, part: str) -> str:
        """Add a terminal for text that does not hold a part, and return its name."""
        name, pattern = f"TEXT_{len(self._rules)}", re.escape(part).replace("/", r"\/")
        self._rules.append(f"{name}: /(.|\\n)*/ & ~/(.|\\n)*{pattern}(.|\\n)*/")
        return name

    def _repeated(self, item: str, separator: str, at_most: int | None) -> str:
        if at_most == 1:
            return item
        more = "*" if at_most is None else f"{{0,{at_most - 1}}}"
        name = self._rule(item)
        return f"({name} ({mark(separator)} {name}){more})" if separator else f"({name} {name}{more})"

    def _joined(self, items: tuple[tuple[Shape, bool], ...], separator: str) -> str:
        """Return shapes in their order. Each has a rule for what comes with it if it is the first, and if it is not."""
        first = following = '""'
        for item, is_required in reversed(items):
            name = self._rule(self._expression(item))
            with_it = f"{name} {following}"
            following = self._rule(f"{mark(separator)} {with_it}{'' if is_required else f' | {following}'}")
            first = self._rule(f"{with_it}{'' if is_required else f' | {first}'}")
        return first

    def _tag_rest(self, content: Shape, end: Mark) -> str:
        """Return what follows the beginning of a tag."""
        if isinstance(content, FreeText) and end != "":
            return self._until(end)
        return f"{self._expression(content)} {mark(end)}"

    def _tagged(self, shape: Tagged) -> str:
        """Return text with tags in it. Tags that share a trigger are told apart by what follows it."""
        choices = []
        for trigger in shape.triggers:
            rests = [self._triggered(tag, trigger) for tag in shape.tags if _begins(tag.begin, trigger)]
            if not rests:
                raise ConstraintError(shape.place, f"no tag begins with the trigger {trigger!r}")
            choices.append(f"{self._until(trigger)} ({' | '.join(rests)})")
        for tag in shape.tags:
            if not any(_begins(tag.begin, trigger) for trigger in shape.triggers):
                raise ConstraintError(shape.place, f"no trigger is a beginning of the tag {tag.begin!r}")
        one = self._rule(" | ".join(choices))
        if shape.stops_after_one:
            return one if shape.at_least_one else f"({one} | TEXT)"
        return f"({one}{'+' if shape.at_least_one else '*'} TEXT)"

    def _triggered(self, tag: Tag, trigger: Mark) -> str:
        rest = tag.begin[len(trigger) :] if isinstance(tag.begin, str) and isinstance(trigger, str) else ""
        return self._rule(f"{mark(rest)} {self._tag_rest(tag.content, tag.end)}")


def _begins(begin: Mark, trigger: Mark) -> bool:
    if isinstance(begin, int) or isinstance(trigger, int):
        return begin == trigger
    return bool(trigger) and begin.startswith(trigger)


def mark(text: Mark) -> str:
    """Return a text, or a token by its id, as Lark writes it."""
    if isinstance(text, int):
        return f"<[{text}]>"
    if UNPRINTABLE.search(text):
        return "/" + "".join(f"\\x{{{ord(character):x}}}" for character in text) + "/"
    return json.dumps(text, ensure_ascii=False)
