"""What `SamplingParams` ask of an output, as the grammars that the engine takes."""

from __future__ import annotations

from sluice.text.constraints.grammars import grammar_of
from sluice.text.constraints.shapes import Choice, Grammar, JsonSchema, Regex, Shape
from sluice.types import SamplingParams

MAX_REMEMBERED = 256


class Grammars:
    """Makes grammars. Those of the last constraints are remembered: many prompts are sent with the same one."""

    def __init__(self) -> None:
        self._remembered: dict[Shape, str] = {}

    def of(self, params: SamplingParams) -> str:
        """Return the grammar of the outputs that parameters ask for; empty if they may be anything.

        Raises:
            ConstraintError: (a ValueError) it cannot be used; the message names the parameter.
        """
        shape = shape_of(params)
        if shape is None:
            return ""
        grammar = self._remembered.get(shape)
        if grammar is None:
            grammar = grammar_of(shape)
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)))
            self._remembered[shape] = grammar
        return grammar


def shape_of(params: SamplingParams) -> Shape | None:
    """Return the shape that parameters ask for; None if they ask for none."""
    if params.schema is not None:
        return JsonSchema(params.schema, "schema", params.whitespace_pattern)
    if params.regex is not None:
        return Regex(params.regex, "regex")
    if params.choice is not None:
        return Choice(params.choice, "choice")
    if params.grammar is not None:
        return Grammar(params.grammar, "grammar")
    return None
