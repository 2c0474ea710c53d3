"""How the served model writes calls and reasoning, and the parser of each answer."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from functools import partial

from sluice.text.constraints.shapes import ANY_OBJECT, AnyOf, FreeText, JsonSchema, Shape
from sluice.text.parsers.calls import JSON_BEGIN, Calls
from sluice.text.parsers.events import TextDelta
from sluice.text.parsers.formats.base import ToolFormat
from sluice.text.parsers.lone_calls import read_lone_calls
from sluice.text.parsers.parsing import AnswerParser, Source, SteppedParser, Steps, TextOnly, until
from sluice.text.parsers.reasoning import Read, ReasoningFormat
from sluice.text.parsers.shapes import ShapedTool, Speller, TokenId, ended
from sluice.text.parsers.thoughts import Thoughts
from sluice.text.parsers.tools import NO_TOOLS, Choice, NewId, Tool, ToolUse


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model writes what is no text in its answers. None: it writes no calls, or no reasoning."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    reads_lone_calls: bool = True
    """An answer that is nothing but the JSON of a call is one, without the tags of the format."""

    @property
    def tells_reasoning(self) -> bool:
        """Reasoning is separated from text."""
        return self.reasoning is not None or (self.tools is not None and self.tools.reads_reasoning)

    def markers(self, use: ToolUse = NO_TOOLS) -> frozenset[str]:
        """Return the texts that a parser must see, even where they are special tokens."""
        tools = self._reader(use)
        of_tools = () if tools is None else tools.markers
        return frozenset((*of_tools, *(() if self.reasoning is None else self.reasoning.markers)))

    def parser(
        self,
        use: ToolUse = NO_TOOLS,
        prompt: str = "",
        new_id: NewId | None = None,
        *,
        continues: bool = False,
        name: str = "",
    ) -> AnswerParser:
        """Return a parser for one answer.

        Args:
            use: the tools of the request.
            prompt: what the template wrote behind the last message, special tokens included: it may have begun the
                reasoning, or ended it.
            new_id: makes the ids of calls. None: the format does.
            continues: the answer continues the message with which the prompt ends, and of which it holds all.
            name: of the answer, from which the format makes these ids; empty: one that no other answer has.
        """
        tools, reasoning = self._reader(use), self.reasoning
        if tools is None and reasoning is None:
            return TextOnly()
        if tools is None:
            read: Read = _read_text
        else:
            if new_id is None:
                names = map(f"{name or secrets.token_hex()}.{{}}".format, itertools.count())
                new_id = map(tools.id_of, names).__next__
            calls = Calls(use.callable, new_id, is_parallel=use.is_parallel)
            read = partial(_read_with, tools, calls)
            if self.reads_lone_calls and use.callable and not tools.reads_reasoning:
                # Formats whose calls are JSON without tags send the arguments as they come.
                read = partial(_read_lone, calls, read, JSON_BEGIN not in tools.begins)
        if reasoning is None:
            return SteppedParser(read)
        is_open = reasoning.is_open(prompt, continues=continues)
        return SteppedParser(partial(_read_behind, reasoning, is_open, read, () if tools is None else tools.begins))

    def thoughts(self, use: ToolUse = NO_TOOLS, prompt: str = "", *, continues: bool = False) -> Thoughts | None:
        """Return what tells the thoughts of an answer from the rest of its text; None if it has none.

        Args:
            use, prompt, continues: as for `parser`.
        """
        tools = self._reader(use)
        if tools is not None and tools.reads_reasoning:
            return tools.thoughts()
        return None if self.reasoning is None else self.reasoning.thoughts(prompt, continues=continues)

    def shape(
        self,
        use: ToolUse,
        prompt: str,
        answer: Shape | None,
        token_id: TokenId,
        *,
        continues: bool = False,
        budget: int | None = None,
    ) -> Shape | None:
        """Return what an answer must look like: by the choice of tools, by strict tools, and by the request itself.

        Args:
            use: the tools of the request.
            prompt, continues: as for `parser`.
            answer: the shape that the request asks for. An answer that calls tools has it not.
            token_id: of the tokenizer.
            budget: most tokens of the reasoning; None: any number.
        """
        tools, reasoning = self._reader(use), self.reasoning
        is_open = False if reasoning is None else reasoning.is_open(prompt, continues=continues)
        in_format = tools is not None and tools.reads_reasoning
        if is_open is False and not in_format:
            budget = None  # there is no reasoning to end
        speller = Speller(self.markers(use), token_id)
        if tools is not None:
            if budget is not None and answer is None and in_format:
                answer = FreeText()
            answer = _shape_with(tools, use, answer, speller, is_held=budget is not None)
        if answer is None:
            if budget is None:
                return None
            answer = FreeText()
        if tools is not None and in_format:
            return tools.whole_shape(answer, speller, budget)
        return answer if reasoning is None else reasoning.shape(answer, is_open, speller, budget)

    def _reader(self, use: ToolUse) -> ToolFormat | None:
        """Return the format by which an answer is read; None if it holds no calls."""
        if self.tools is None or not (use.callable or self.tools.reads_reasoning):
            return None
        return self.tools


def _shape_with(
    tools: ToolFormat, use: ToolUse, answer: Shape | None, speller: Speller, *, is_held: bool
) -> Shape | None:
    """Return the shape of an answer that may, or must, call tools.

    Args:
        is_held: the answer has a shape in any case.
    """
    is_parallel = use.is_parallel and use.name is None
    shaped = [ShapedTool(tool.name, _arguments(tool, use)) for tool in use.callable]
    plain = None if answer is None else tools.plain_shape(answer, speller)
    if not shaped:
        return plain
    if use.choice is Choice.REQUIRED or plain is not None:
        calls = ended(tools.calls_shape(shaped, speller, is_parallel=is_parallel), tools.after_calls)
        return calls if use.choice is Choice.REQUIRED or plain is None else AnyOf((plain, calls))
    is_held = is_held or not is_parallel or any(tool.strict for tool in use.callable)
    return tools.text_shape(shaped, speller, is_parallel=is_parallel) if is_held else None


def _arguments(tool: Tool, use: ToolUse) -> JsonSchema:
    """Return the shape of a tool's arguments: where the model may choose, any object, unless the tool is strict."""
    if use.choice is Choice.REQUIRED or tool.strict:
        return JsonSchema(dict(tool.schema), tool.place, is_lenient=not tool.strict)
    return JsonSchema(ANY_OBJECT, tool.place)


PLAIN = ReplyFormat()
"""All is text."""


def _read_text(source: Source) -> Steps[None]:
    found = yield from until(source, ())
    if found.space:
        yield TextDelta(found.space)


def _read_with(tools: ToolFormat, calls: Calls, source: Source) -> Steps[None]:
    return tools.read(source, calls)


def _read_lone(calls: Calls, rest: Read, bare: bool, source: Source) -> Steps[None]:
    return read_lone_calls(source, calls, rest, bare=bare)


def _read_behind(
    reasoning: ReasoningFormat, is_open: bool | None, rest: Read, begins: tuple[str, ...], source: Source
) -> Steps[None]:
    return reasoning.read(source, is_open, rest, begins)
