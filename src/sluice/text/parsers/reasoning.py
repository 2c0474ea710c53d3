"""How models write what they think before they answer: between two tags, of which the prompt may hold the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sluice.text.constraints.shapes import Literal, Regex, Sequence, Shape, TextUntil, after_reasoning
from sluice.text.parsers.events import ReasoningDelta
from sluice.text.parsers.parsing import Source, Steps, comes, space_ahead, until
from sluice.text.parsers.shapes import Speller, optional

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

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts by which it tells reasoning from text."""
        return self.begin, self.end

    def is_open(self, prompt: str, *, continues: bool = False) -> bool | None:
        """Return whether an answer begins within reasoning; None if it may begin with the first tag.

        Args:
            prompt: the end of the prompt, special tokens included.
            continues: the answer continues the final message, with which the prompt ends.
        """
        if continues:
            return prompt.rfind(self.begin) > prompt.rfind(self.end)
        prompt = prompt.rstrip()
        if prompt.endswith(self.end):
            return False
        return True if self.always or prompt.endswith(self.begin) else None

    def read(self, source: Source, is_open: bool | None, rest: Read) -> Steps[None]:
        """Read an answer until its end. Space next to the tags belongs to nothing.

        Args:
            is_open: as `is_open` returns it.
            rest: reads what follows the reasoning.
        """
        if is_open is not False:
            space = yield from space_ahead(source)
            has_begun = yield from comes(source, self.begin, space)
            if has_begun:
                source.take(space + len(self.begin))
            if has_begun or is_open:
                yield from self._read_reasoning(source)
        yield from rest(source)

    def shape(self, answer: Shape, is_open: bool | None, speller: Speller) -> Shape:
        """Return the shape of an answer with the reasoning before it."""
        if is_open is False:
            return answer
        end = speller.mark(self.end)
        if is_open:
            return after_reasoning(answer, end)
        thoughts = Sequence((Literal(speller.mark(self.begin)), TextUntil(end), Regex(SPACE)))
        return Sequence((optional(thoughts), answer))

    def _read_reasoning(self, source: Source) -> Steps[None]:
        source.take((yield from space_ahead(source)))
        found = yield from until(source, (self.end,), ReasoningDelta)
        if found.marker:
            source.take((yield from space_ahead(source)))
        elif found.space:
            yield ReasoningDelta(found.space)


REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            ReasoningFormat("qwen3"),
            ReasoningFormat("deepseek_r1", always=True),
            ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
            ReasoningFormat("kimi", "◁think▷", "◁/think▷", always=True),
            ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>"),
        )
    }
)
"""Format by the name that `--reasoning-parser` takes."""
