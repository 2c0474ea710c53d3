"""Renders chat messages to a prompt with the checkpoint's chat template, in a sandbox with limits (`template_limits`).

The template and its special tokens come from the checkpoint, never from a request. Templates follow Hugging Face's
conventions: blocks are trimmed, and `raise_exception`, `strftime_now`, `tojson`, `{% generation %}` and loop controls
are available.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from sluice.text.template_limits import BUDGET, BoundedEnvironment, Budget, bounded_filter

REFUSALS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(RecursionError, MemoryError),
)
"""Exceptions of a template that refuses the messages, or does not work with them."""


class ChatTemplateError(ValueError):
    """The template cannot be compiled, or it refuses the messages."""


class ChatTemplate:
    """A compiled template, and the special tokens it may use (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the checkpoint's chat template cannot be read: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt for the next assistant message.

        Args:
            messages: each with "role" and "content".

        Raises:
            ChatTemplateError: the template refuses these messages, with its own text.
        """
        budget = BUDGET.set(Budget.of(sum(len(text) for message in messages for text in message.values())))
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except REFUSALS as error:
            reason = str(error) or type(error).__name__
            raise ChatTemplateError(f"the checkpoint's chat template refuses the messages: {reason}") from error
        finally:
            BUDGET.reset(budget)


class _Generation(Extension):
    """Accepts `{% generation %}`, which marks the assistant's text for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it like this)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = bounded_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
