"""What a format of calls must offer."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from sluice.text.constraints.shapes import Sequence as Row
from sluice.text.constraints.shapes import Shape
from sluice.text.parsers.calls import Calls, read_headed_call, skip_texts, text_and_calls
from sluice.text.parsers.parsing import Source, Steps
from sluice.text.parsers.shapes import ShapedTool, Speller, one_of, several, text_with
from sluice.text.parsers.thoughts import Thoughts

ID_LENGTH = 24
"""Characters of the id of a call, behind what all of them begin with."""


class ToolFormat(Protocol):
    """How models of a kind write calls of tools."""

    @property
    def name(self) -> str:
        """The name by which it is chosen."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts by which it tells calls from text. Those that are special tokens are shown to its parser."""
        ...

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which calls begin."""
        ...

    @property
    def reads_reasoning(self) -> bool:
        """It tells reasoning from text too, so all answers are read by it."""
        ...

    @property
    def after_calls(self) -> str:
        """A regular expression for what models write behind their calls before they stop; empty: nothing."""
        ...

    def id_of(self, name: str) -> str:
        """Return the id of a call, in the form that the models' templates take.

        Args:
            name: of the call; no other call has it.
        """
        ...

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        """Read an answer, behind its reasoning if it has some, until its end."""
        ...

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        """Return the shape of answers, behind their reasoning, that call one of some tools, or several."""
        ...

    def plain_shape(self, answer: Shape, speller: Speller) -> Shape:
        """Return the shape of an answer that is a text of some shape."""
        ...

    def whole_shape(self, answer: Shape, speller: Speller, budget: int | None = None) -> Shape:
        """Return the shape of an answer with what stands around it: the reasoning, if the format reads it, of at most
        `budget` tokens."""
        ...

    def thoughts(self) -> Thoughts | None:
        """Return what tells thoughts from the rest of an answer, if the format reads reasoning."""
        ...

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        """Return the shape of answers whose calls are as the tools say; None if the format cannot tell where one
        begins."""
        ...


class Format:
    """What most formats have in common."""

    reads_reasoning = False
    begins: tuple[str, ...] = ()
    after_calls = r"\s{0,2}"

    def plain_shape(self, answer: Shape, speller: Speller) -> Shape:
        return answer

    def whole_shape(self, answer: Shape, speller: Speller, budget: int | None = None) -> Shape:
        return answer

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        return None

    def thoughts(self) -> Thoughts | None:
        return None

    def id_of(self, name: str) -> str:
        return f"call_{hashlib.sha256(name.encode()).hexdigest()[:ID_LENGTH]}"


class TaggedFormat(Format):
    """A format in which each call stands between tags of its own."""

    begin: str
    """The tag before a call."""
    separator = "\n"
    """Text between two calls."""

    @abstractmethod
    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        """Return the shape of a call, with its tags."""

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return several(one_of(self.call(tool, speller) for tool in tools), self.separator, is_parallel=is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        calls = (self.call(tool, speller) for tool in tools)
        return text_with(calls, speller.mark(self.begin), is_parallel=is_parallel)


class SectionFormat(Format):
    """A format in which all calls stand in one section, each with its name before the JSON of its arguments."""

    all_begin: str
    all_end: str
    """The tags of the section."""
    call_begin: str
    head: re.Pattern[str]
    """Matches what stands before the arguments; its group "name" is the name."""
    closing: tuple[str, ...]
    """Texts behind the arguments of a call, the end of the section last."""
    separator = ""
    """Text between two calls."""

    @abstractmethod
    def call(self, tool: ShapedTool, speller: Speller) -> Row:
        """Return the shape of a call, without the tags of the section."""

    def read(self, source: Source, calls: Calls) -> Steps[None]:
        def read_call(_: str) -> Steps[bool]:
            is_call = yield from read_headed_call(source, calls, self.head, self.closing)
            if is_call:
                yield from skip_texts(source, *self.closing)
            return is_call

        yield from text_and_calls(source, (self.all_begin, self.call_begin), read_call)

    def calls_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape:
        return self._all(tools, speller, is_parallel)

    def text_shape(self, tools: Sequence[ShapedTool], speller: Speller, *, is_parallel: bool) -> Shape | None:
        return text_with([self._all(tools, speller, is_parallel)], speller.mark(self.all_begin), is_parallel=False)

    def _all(self, tools: Sequence[ShapedTool], speller: Speller, is_parallel: bool) -> Row:
        one = one_of(self.call(tool, speller) for tool in tools)
        return speller.sequence(self.all_begin, several(one, self.separator, is_parallel=is_parallel), self.all_end)
