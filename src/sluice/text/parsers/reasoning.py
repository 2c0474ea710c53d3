"""How models write what they think before they answer: between two tags, of which the prompt may hold the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sluice.text.constraints.shapes import FreeText, Literal, Regex, Sequence, Shape, TextUntil, after_reasoning
from sluice.text.parsers.events import CallBegun, CallEnded, ReasoningDelta, TextDelta
from sluice.text.parsers.parsing import Found, Source, Steps, Waits, comes, more, space_ahead, until
from sluice.text.parsers.shapes import Speller, optional
from sluice.text.parsers.thoughts import Thoughts

Read = Callable[[Source], Steps[None]]
"""Reads an answer until its end."""


SPACE = r"\s{0,4}"
"""What may stand behind the reasoning where an answer is constrained."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two tags."""

    name: str
    begin: str = "<think>"
    end: str = "</think>"
    always: bool = False
    """An answer begins with reasoning, even if neither it nor the prompt has the first tag."""
    label: str = ""
    """Stands behind the first tag, and belongs to it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts by which it tells reasoning from text."""
        return self.begin, self.end

    def is_open(self, prompt: str, *, continues: bool = False) -> bool | None:
        """Return whether an answer begins within reasoning; None if it may begin with the first tag.

        Args:
            prompt: what the template wrote behind the last message, special tokens included.
            continues: the answer continues the final message, with which the prompt ends.
        """
        begin, end = prompt.rfind(self.begin), prompt.rfind(self.end)
        if begin != end:
            return begin > end
        return False if continues else True if self.always else None

    def thoughts(self, prompt: str, *, continues: bool = False) -> Thoughts:
        """Return what tells thoughts from the rest of an answer, given what `is_open` is."""
        return Thoughts(self.begin, (self.end,), self.is_open(prompt, continues=continues))

    def read(self, source: Source, is_open: bool | None, rest: Read, begins: tuple[str, ...] = ()) -> Steps[None]:
        """Read an answer until its end. Space next to the tags belongs to nothing.

        Args:
            is_open: as `is_open` returns it.
            rest: reads what follows the reasoning.
            begins: texts with which calls begin. Those in reasoning that never ends are meant.
        """
        if is_open is not False:
            space = yield from space_ahead(source)
            has_begun = yield from comes(source, self.begin, space)
            if has_begun:
                source.take(space + len(self.begin))
                if self.label and (yield from comes(source, self.label)):
                    source.take(len(self.label))
            if has_begun or is_open:
                yield from self._read_reasoning(source, rest, begins)
        yield from rest(source)

    def shape(self, answer: Shape, is_open: bool | None, speller: Speller, budget: int | None = None) -> Shape:
        """Return the shape of an answer with the reasoning before it.

        Args:
            budget: most tokens of the reasoning between its tags; None: any number.
        """
        if is_open is False:
            return answer
        end = speller.mark(self.end)
        if is_open:
            return after_reasoning(answer, end, budget)
        begin = Literal(speller.mark(self.begin)), Literal(self.label)
        thoughts = Sequence((*begin, TextUntil(end, budget), Regex(SPACE)))
        if isinstance(answer, FreeText) and not speller.has_token(self.begin):
            answer = FreeText(without=self.begin)  # or reasoning could pass as the answer
        return Sequence((optional(thoughts), answer))

    def _read_reasoning(self, source: Source, rest: Read, begins: tuple[str, ...]) -> Steps[None]:
        source.take((yield from space_ahead(source)))
        found = yield from until(source, (self.end, *begins), ReasoningDelta)
        while found.marker in begins:
            begun = found.space + found.marker
            if not (yield from self._goes_on(source)):
                yield from _calls_of(source, found, rest)
                return
            found = yield from until(source, (self.end,), ReasoningDelta, begun)
        if found.marker:
            source.take((yield from space_ahead(source)))
        elif found.space:
            yield ReasoningDelta(found.space)

    def _goes_on(self, source: Source) -> Waits[bool]:
        """Wait for the end of the reasoning or of the answer; return whether the former came."""
        while not source.find((self.end,))[1]:
            if not (yield from more(source)):
                return False
        return True


def _calls_of(source: Source, found: Found, rest: Read) -> Steps[None]:
    """Read the rest of reasoning that the answer ended with: as calls and text if whole calls are in it.

    Args:
        found: the marker with which the first may begin, and which was read.
    """
    held = found.marker + source.take()
    again = Source()
    again.feed(held)
    again.has_ended, again.was_cut = True, source.was_cut
    events = [] if source.was_cut else [event for event in rest(again) if event is not None]
    if not any(isinstance(event, CallEnded) and event.is_complete for event in events):
        yield ReasoningDelta(found.space + held)
        return
    thought, has_called = found.space, False
    for event in events:
        has_called = has_called or isinstance(event, CallBegun)
        if isinstance(event, TextDelta) and not has_called:
            yield ReasoningDelta(thought + event.text)
            thought = ""
        else:
            yield event


REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            ReasoningFormat("qwen3"),
            ReasoningFormat("deepseek_r1", always=True),
            ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
            ReasoningFormat("kimi", "◁think▷", "◁/think▷", always=True),
            ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
            ReasoningFormat("gemma4", "<|channel>", "<channel|>", label="thought\n"),
        )
    }
)
"""Format by the name that `--reasoning-parser` takes."""
