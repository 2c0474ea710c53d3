"""A Jinja sandbox that limits the time and memory of a template.

Jinja's own sandbox keeps a template from reaching Python, but lets it loop forever and build strings of any size. Here
every turn of a loop and every call of a macro checks the time, and every operation that can make a long text checks its
length first. Constants are not folded, so compiling a template computes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from types import BuiltinMethodType
from typing import Any, TypeVar

from jinja2 import TemplateRuntimeError, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

T = TypeVar("T")

SECONDS = 2.0
"""Processor time of one rendering."""
FREE_CHARACTERS = 1 << 24
PER_CHARACTER = 16
"""A rendering may make `FREE_CHARACTERS` and so many for each of the messages, intermediate texts included."""
LARGEST_WIDTH = 1000
LARGEST_BITS = 4096
"""Bits of the largest integer."""
WIDE = re.compile(r"\d{4}")
"""Matches a format with a width that fills memory."""
WIDTH_BY_VALUE = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")
"""Matches a format with a width that is given by a value."""


class LimitReached(TemplateRuntimeError):
    """The template exceeds a limit."""


@dataclass(slots=True)
class Budget:
    """What is left of the limits of one rendering."""

    characters: int
    until: float

    @classmethod
    def of(cls, given: int) -> Budget:
        """Return the full budget of a rendering.

        Args:
            given: characters of the messages.
        """
        return cls(FREE_CHARACTERS + PER_CHARACTER * given, time.thread_time() + SECONDS)

    def check_time(self) -> None:
        if time.thread_time() > self.until:
            raise LimitReached(f"it runs for more than {SECONDS:g} seconds")

    def spend(self, characters: int) -> None:
        """Count a text of this length, before it is made."""
        self.check_time()
        self.characters -= characters
        if self.characters < 0:
            raise LimitReached("it makes more text than a chat can need")


BUDGET: ContextVar[Budget | None] = ContextVar("sluice_template_budget", default=None)
"""The budget of the present rendering."""


def _budget() -> Budget:
    budget = BUDGET.get()
    return Budget.of(0) if budget is None else budget


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. `BUDGET` must be set while a template renders."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, **options)
        self.filters = {name: bounded_filter(name, work) for name, work in self.filters.items()}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        checked: nodes.Template = _Checks().visit(parsed)
        checked.set_environment(self)
        return checked

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Join the output of a macro, a block or the whole template."""
        written = list(_accounted(parts))
        return "".join(written)

    @staticmethod
    def tick() -> str:
        """Check the time; inserted at the beginning of each loop turn and macro call."""
        _budget().check_time()
        return ""

    @staticmethod
    def join_all(*values: object) -> str:
        """Concatenate, for the operator `~`."""
        return "".join(_accounted(map(str, values)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Check and apply an operator."""
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Check and call a function, macro or method."""
        if isinstance(called, BuiltinMethodType) and isinstance(called.__self__, str):
            args = _checked_arguments(called, args)
            return _spent(super().call(context, called, *args, **kwargs))
        return super().call(context, called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Check calls of `str.format` and `str.format_map`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            text: str = wrapped(*args, **kwargs)
            return _spent(text)

        return checked


class _Checks(NodeTransformer):
    """Inserts the checks into a template's syntax tree."""

    def _with_tick(self, node: Any) -> Any:
        self.generic_visit(node)
        tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _with_tick

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("join_all"), node.nodes, [], None, None, lineno=node.lineno)


def _accounted(parts: Iterable[str]) -> Iterable[str]:
    budget = _budget()
    for part in parts:
        budget.spend(len(part))
        yield part


def _spent(result: T) -> T:
    """Count the size of a result, and return it."""
    if isinstance(result, str):
        _budget().spend(len(result))
    elif isinstance(result, list | tuple | dict):
        _budget().spend(8 * len(result))
    return result


def _check_operands(operator: str, left: Any, right: Any) -> None:
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "%":
        if isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
    elif numbers and operator in ("*", "**"):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > LARGEST_BITS:
            raise LimitReached(f"it makes a number of more than {LARGEST_BITS} bits")
    elif operator == "*":
        _check_repetition(left, right)
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _budget().spend(len(left) + len(right))


def _check_repetition(left: Any, right: Any) -> None:
    for repeated, times in ((left, right), (right, left)):
        if isinstance(repeated, str | list | tuple) and isinstance(times, int):
            _budget().spend(len(repeated) * max(0, times))


def _check_format(text: str, values: Iterable[Any]) -> None:
    """Refuse a format with a large width, given in digits or by a value."""
    if WIDE.search(text) or (WIDTH_BY_VALUE.search(text) and any(_is_wide(value) for value in values)):
        raise LimitReached("it uses a width that no text needs")
    _budget().check_time()


def _is_wide(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST_WIDTH


def _width(value: Any) -> int:
    """Return the width or count that an argument gives: a number, or the length of a text."""
    width = len(value) if isinstance(value, str) else value if isinstance(value, int) else 0
    if width > LARGEST_WIDTH:
        raise LimitReached(f"it uses a width of {width}; the largest is {LARGEST_WIDTH}")
    return width


def _checked_arguments(method: BuiltinMethodType, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check the arguments of a text's method, and return them with iterators replaced by lists."""
    text, name = str(method.__self__), method.__name__
    if name == "translate":
        raise LimitReached("it uses str.translate, which is not available")
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        widest = max(map(_width, args), default=8)
        _budget().spend(len(text) + widest * (1 + text.count("\t")))
    elif name == "replace" and len(args) > 1:
        _check_replace((text, *args))
    elif name == "join" and len(args) == 1:
        args = (list(_accounted(args[0])),)
        _budget().spend(len(text) * len(args[0]))
    return args


def _check_replace(given: Sequence[Any]) -> None:
    """Check the arguments (text, old, new)."""
    text, old, new = map(str, given[:3])
    _budget().spend(len(text) + text.count(old) * len(new))


def _check_join(given: Sequence[Any]) -> None:
    """Check the arguments (list, separator)."""
    _budget().spend(len(given[0]) * len(str(given[1])) if len(given) > 1 else 0)


def _check_indent(given: Sequence[Any]) -> None:
    """Check the arguments (text, width)."""
    _budget().spend((1 + str(given[0]).count("\n")) * _width(given[1] if len(given) > 1 else 4))


def _check_wordwrap(given: Sequence[Any]) -> None:
    """Check the arguments (text, width, break_long_words, wrapstring)."""
    _budget().spend(len(str(given[0])) * (1 + (_width(given[3]) if len(given) > 3 else 1)))


def _check_counts(given: Sequence[Any]) -> None:
    """Check arguments (value, widths or counts...)."""
    for value in given[1:]:
        _width(value)


def _check_sum(given: Sequence[Any]) -> None:
    """Refuse to add up lists, which takes quadratic time."""
    if any(isinstance(value, list | tuple) for value in given[2:]):
        raise LimitReached("it adds lists up")


def _check_format_filter(given: Sequence[Any]) -> None:
    _check_format(str(given[0]), given[1:])


FILTER_CHECKS: Mapping[str, Callable[[Sequence[Any]], None]] = {
    "replace": _check_replace,
    "join": _check_join,
    "indent": _check_indent,
    "wordwrap": _check_wordwrap,
    "center": _check_counts,
    "batch": _check_counts,
    "slice": _check_counts,
    "tojson": _check_counts,
    "sum": _check_sum,
    "format": _check_format_filter,
}
"""Checks of a filter's arguments, positional and then named."""


def bounded_filter(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments and counts the size of its result."""
    check = FILTER_CHECKS.get(name)
    takes_context = _PassArg.from_obj(work) is not None

    @wraps(work)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        at = int(takes_context)
        if name == "join":
            args = (*args[:at], _whole(args[at]), *args[at + 1 :])
        if check is not None:
            check((*args[at:], *kwargs.values()))
        return _spent(work(*args, **kwargs))

    return bounded


def _whole(value: Any) -> list[Any]:
    """Return the items of an iterable as a list, with their texts counted."""
    items = list(value)
    _budget().spend(sum(len(item) for item in items if isinstance(item, str)))
    return items
