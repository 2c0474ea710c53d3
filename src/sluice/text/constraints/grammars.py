"""Shapes as the grammars that the engine takes (`Submit.grammar`), checked.

What `grammar_of` returns is a text in llguidance's JSON form. It was compiled once with `parser_limits`, so an engine
that compiles it within the same limits accepts it.
"""

from __future__ import annotations

import json
import re
from functools import cache, partial
from typing import Any, NoReturn

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from sluice.text.constraints.errors import ConstraintError
from sluice.text.constraints.lark import LarkWriter
from sluice.text.constraints.leaving_out import Problem
from sluice.text.constraints.schema_tree import OPTIONS
from sluice.text.constraints.schemas import SEPARATORS, prepared_schema
from sluice.text.constraints.shapes import (
    AnyOf,
    Choice,
    Grammar,
    JsonSchema,
    Members,
    Regex,
    Repeated,
    Sequence,
    Shape,
    Tag,
    Tagged,
)

MAX_BYTES = 1 << 18
"""Most bytes of a grammar."""
LONGEST_REASON = 600
"""Characters of an error of llguidance, which may repeat the grammar."""
OPTION = re.compile(r"(?m)^\s*[a-z_][\w-]*\[([^\]\n]*)\]\s*:")
"""The options of a rule in Lark."""
QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/')
"""Strings, comments and regular expressions in Lark."""
SPECIAL_TOKEN = re.compile(r"<[^\s<>]+>")
REFUSED_OPTIONS = ("stop", "max_tokens", "temperature")
"""Options by which llguidance takes tokens back, or changes how they are sampled."""


Part = JsonSchema | Regex | Grammar | Choice
"""A part of a shape that says where a client wrote it."""


class Checked(msgspec.Struct, tag=True, frozen=True):
    """A grammar that was checked."""

    text: str
    dropped: tuple[str, ...]
    """Places of what a lenient schema asks for and is left out."""


def grammar_of(shape: Shape) -> str:
    """Return the grammar of a shape.

    Raises:
        ConstraintError: the shape cannot be used.
    """
    return checked_grammar(shape).text


def checked_grammar(shape: Shape) -> Checked:
    """Return the grammar of a shape, and what was left out of it.

    This may take seconds for a hostile one. It holds the interpreter's lock for a part of them.

    Raises:
        ConstraintError: the shape cannot be used.
    """
    dropped: list[str] = []
    text = _text_of(shape, dropped)
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise ConstraintError(place_of(shape), f"it makes a grammar of {size} bytes; at most {MAX_BYTES} are accepted")
    if _problem_of(text) or any(_problem_of(_text_of(part, [])) for part in _objects_of(shape)):
        dropped.clear()
        text = _text_of(shape, dropped, _problem_of_schema)
        problem = _problem_of(text)
        if problem is not None:
            _refuse(shape, problem)
    return Checked(text, tuple(dropped))


def _text_of(shape: Shape, dropped: list[str], problem: Problem | None = None) -> str:
    """Return the grammar of a shape, unchecked. What is left out of it is added to `dropped`.

    Args:
        problem: as for `prepared_schema`.
    """
    writer = LarkWriter(partial(prepared_schema, dropped=dropped, problem=problem), _lark_of, _regex_of)
    return json.dumps({"grammars": writer.grammars(shape)}, ensure_ascii=False)


def parser_limits() -> LLParserLimits:
    """Return the limits within which grammars are compiled, here and by the engine."""
    return LLParserLimits(verbose_errors=False)


def _refuse(shape: Shape, problem: str) -> NoReturn:
    """Refuse a shape, by the first of its parts that cannot be used alone, if there is one."""
    parts = parts_of(shape)
    for part in parts if len(parts) > 1 else ():
        its_own = _problem_of(_text_of(part, []))
        if its_own is not None:
            raise ConstraintError(part.place, its_own)
    raise ConstraintError(place_of(shape), problem)


def _problem_of(text: str) -> str | None:
    """Return why a grammar cannot be compiled, or allows no answer; None if it can be used.

    A tokenizer of single bytes takes the place of the model's, so its special tokens are not known here.
    """
    error = LLMatcher.validate_grammar(text, None, limits=parser_limits())
    if error:
        return _short(error)
    if "<[" in text:
        return None
    matcher = LLMatcher(_byte_tokenizer(), text, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return f"it allows no answer ({_short(matcher.get_error())})" if matcher.is_error() else None


def _problem_of_schema(schema: Any) -> str | None:
    """Return the same of a prepared schema, or of a part of one."""
    options = {"coerce_one_of": True, **SEPARATORS}
    content = {OPTIONS: options, **schema} if isinstance(schema, dict) else schema
    return _problem_of(json.dumps({"grammars": [{"json_schema": content}]}, ensure_ascii=False))


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def _short(error: str) -> str:
    """Return llguidance's error without the lines that repeat the grammar."""
    if "oneOf constraints" in error:
        return "oneOf is supported only where no value can match two of its schemas, as far as can be told; use anyOf"
    lines = [line.strip() for line in error.splitlines() if line.strip() and not re.match(r"\s*(\d+ \||\^)", line)]
    return " ".join(lines)[:LONGEST_REASON]


def _regex_of(shape: Regex) -> str:
    if not shape.pattern:
        raise ConstraintError(shape.place, "a regular expression must not be empty")
    return regex_to_lark(shape.pattern, "d")


def _lark_of(shape: Grammar) -> str:
    """Return a user's grammar as Lark."""
    if not shape.text.strip():
        raise ConstraintError(shape.place, "a grammar must not be empty")
    try:
        text = any_to_lark(shape.text)
    except RecursionError as error:
        raise ConstraintError(shape.place, "the grammar is nested too deeply") from error
    except Exception as error:  # the converter of GBNF raises what it likes
        message = f"it has no rule `start`, as Lark has, and is no GBNF: {error}"
        raise ConstraintError(shape.place, message) from error
    named = SPECIAL_TOKEN.search(QUOTED.sub("", text))
    if named is not None:
        raise ConstraintError(shape.place, f"special tokens, as {named[0][:40]}, are not supported in a grammar")
    for options in OPTION.findall(text):
        for name in REFUSED_OPTIONS:
            if re.search(rf"\b{name}\b", re.sub(r'"[^"]*"', "", options)):
                raise ConstraintError(shape.place, f"the option {name} of a rule is not supported")
    return text


def parts_of(shape: Shape) -> list[Part]:
    """Return the parts of a shape that clients write, in order."""
    match shape:
        case JsonSchema() | Regex() | Grammar() | Choice():
            return [shape] if shape.place else []
        case Members(object):
            return parts_of(object)
        case Sequence(items) | AnyOf(items) | Tagged(tags=items):
            return [part for item in items for part in parts_of(item)]
        case Repeated(item):
            return parts_of(item)
        case Tag(content=content):
            return parts_of(content)
    return []


def _objects_of(shape: Shape) -> list[JsonSchema]:
    """Return the schemas of objects whose members a shape has as tagged texts."""
    match shape:
        case Members(object):
            return [object]
        case Sequence(items) | AnyOf(items) | Tagged(tags=items):
            return [part for item in items for part in _objects_of(item)]
        case Repeated(item):
            return _objects_of(item)
        case Tag(content=content):
            return _objects_of(content)
    return []


def place_of(shape: Shape) -> str:
    """Return where a client wrote a shape; of several parts, the fields of the request that hold them."""
    if isinstance(shape, Tagged) and shape.place:
        return shape.place
    places = dict.fromkeys(part.place for part in parts_of(shape))
    if len(places) > 1:
        places = dict.fromkeys(re.split(r"[.\[]", place)[0] for place in places)
    return " and ".join(places)
