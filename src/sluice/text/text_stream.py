"""The text of one request: decodes its tokens, ends it at the first stop string, and counts the tokens.

The HTTP server, `LLM` and the command line all use it, so their texts are equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.text.detokenizer import Detokenizer
from sluice.text.parsers.thoughts import Thoughts
from sluice.types import CachedTokens, Drafted, FinishReason, Output, TokenLogprobs


class StopFinder:
    """Ends a text that arrives in pieces before the first stop string.

    The first stop string is the one that is complete first, and of several that end together the longest. So the result
    does not depend on the pieces. Text that may be the beginning of a stop string is held back.

    Args:
        include_stop: the text ends behind the stop string.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = [_StopString(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Add a piece, and return the text that certainly precedes any stop string."""
        if not self._stops or not text:
            return text
        before = len(self._held)
        ends = [(end, end - len(stop.text)) for stop in self._stops if (end := stop.push(text)) is not None]
        text = self._held + text
        if ends:
            self._held = ""
            end, start = min(ends)
            self.found = text[before + start : before + end]
            return text[: before + (end if self._include_stop else start)]
        end = len(text) - max(stop.matched for stop in self._stops)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held


class _StopString:
    """Finds one stop string in a text that arrives in pieces, in a time that does not depend on its length.

    Source: Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977. Their table is made as far as the string
    has matched, so a string that never matches costs nothing.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Characters of `text` that the text so far ends with: as many as possible, but not all."""
        self._borders = [0]
        """Length of the longest shorter prefix of `text` that each matched prefix ends with."""

    def push(self, text: str) -> int | None:
        """Add a piece, and return where in it the string ends that is complete first, if one is."""
        position = 0
        while position < len(text):
            if self.matched == 0:
                position = text.find(self.text[0], position)
                if position < 0:
                    return None
            self._add(text[position])
            position += 1
            if self.matched == len(self.text):
                return position
        return None

    def _add(self, char: str) -> None:
        self.matched = self._longest(self.matched, char)
        if self.matched > len(self._borders):
            self._borders.append(self._longest(self._borders[-1], char))

    def _longest(self, length: int, char: str) -> int:
        """Return how much matches after `char`, if `length` characters match before it."""
        while length and self.text[length] != char:
            length = self._borders[length - 1]
        return length + (self.text[length] == char)


class Piece(NamedTuple):
    """The text that one token adds. The last piece has a `finish_reason`, and no token id if it ended otherwise."""

    token_id: int | None
    text: str
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    """Log-probabilities of the token; None unless requested."""
    offset: int = 0
    """Characters of text before the token, including those of a stop string."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What the text of an output holds besides its ordinary tokens."""

    skip_special_tokens: bool = True
    include_stop: bool = False
    """The stop string or the stop token that ends it."""


DEFAULT_TEXT = TextOptions()


class TextStream:
    """Turns the outputs of one request into pieces of text, one for each token.

    Args:
        detokenizer: continues the request's prompt.
        stop: strings that end the text.
        min_tokens: stop strings do not count in the text of this many first tokens.
        include_stop: the text holds the stop string or the stop token that ends it.
        thoughts: tells thoughts from the answer, for the count of their tokens.
        skip_thoughts: stop strings and stop ids do not count in thoughts.
        stop_ids: tokens that end the text, besides those that the engine knows.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        *,
        include_stop: bool = False,
        thoughts: Thoughts | None = None,
        skip_thoughts: bool = False,
        stop_ids: Collection[int] = (),
    ) -> None:
        self._detokenizer = detokenizer
        self._thoughts, self._skips_thoughts = thoughts, skip_thoughts
        self._stop_ids = stop_ids
        self._num_thought, self._num_undecided = 0, 0
        self._is_behind_thought = False
        self._min_tokens = min_tokens
        self._stops = StopFinder(stop, include_stop=include_stop)
        self._include_stop = include_stop
        self.num_tokens = 0
        """Tokens of the output, including the one that ended the text."""
        self.finish_reason: FinishReason | None = None
        self._length = 0
        self.cached = CachedTokens()
        self.drafted = Drafted()
        """Drafts of all outputs until the text ended."""
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        """None for the first token of the prompt; the others only if they were requested."""

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None: something else did, or it has not ended."""
        return self._stops.found

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thoughts, their tags included."""
        return self._num_thought if self._thoughts is not None and self._thoughts.has_text else 0

    def push(self, output: Output) -> list[Piece]:
        """Return the pieces of one output, in order.

        Once a stop string is complete the text has ended with STOP: later outputs give no pieces, and the caller must
        abort the request. If an output ends with ERROR or ABORT, the caller must report it.
        """
        if self.finish_reason is None:
            self.add_prompt_facts(output)
            if output.num_drafted:
                self.drafted = Drafted(*map(sum, zip(self.drafted, output.drafted, strict=True)))
        pieces: list[Piece] = []
        last = len(output.token_ids) - 1
        for index, token in enumerate(output.token_ids):
            if self.finish_reason is not None:
                return pieces
            logprobs = output.logprobs[index] if output.logprobs else None
            pieces.append(self._token(token, output.finish_reason if index == last else None, logprobs))
        if self.finish_reason is None and output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            pieces.append(Piece(None, self._rest(), output.finish_reason))
        return pieces

    def add_prompt_facts(self, output: Output) -> None:
        """Keep what an output says about the prompt: its cached tokens and its log-probabilities."""
        self.cached = output.cached
        self.prompt_logprobs += output.prompt_logprobs

    def end(self, reason: FinishReason) -> Piece:
        """End the text without a token."""
        self.finish_reason = reason
        return Piece(None, "", reason)

    def _token(self, token: int, reason: FinishReason | None, logprobs: TokenLogprobs | None) -> Piece:
        self.num_tokens += 1
        offset = self._length
        reason = self._ended_by(token, reason)
        is_hidden = reason is FinishReason.STOP and not self._include_stop
        own = "" if is_hidden else self._detokenizer.push(token)
        self._length += len(own)
        text = self._searched(own)
        if self.stop_string is None and reason is not None:
            text += self._rest()
        self.finish_reason = FinishReason.STOP if self.stop_string is not None else reason
        return Piece(token, text, self.finish_reason, logprobs, offset)

    def _rest(self) -> str:
        """Return the text that was held back: an unfinished character and the beginning of a tag or a stop string."""
        text = self._searched(self._detokenizer.flush(), is_token=False)
        if self._thoughts is not None:
            text += self._stopped(self._thoughts.flush())
        return text if self.stop_string is not None else text + self._stops.flush()

    def _ended_by(self, token: int, reason: FinishReason | None) -> FinishReason | None:
        """Return why the text ends with a token that the engine ends for a reason, or goes on with."""
        is_stop = token in self._stop_ids and self.num_tokens > self._min_tokens
        return FinishReason.STOP if reason is None and is_stop and not self._is_thinking() else reason

    def _is_thinking(self) -> bool:
        return self._thoughts is not None and self._thoughts.is_inside

    def _searched(self, text: str, *, is_token: bool = True) -> str:
        """Return as much of a token's text as precedes a stop string for certain, and count the thoughts."""
        if self._thoughts is None:
            return self._stopped([(text, True)])
        was_inside = self._thoughts.is_inside
        parts = list(self._thoughts.split(text))
        if is_token and (was_inside or self._thoughts.is_inside or not all(is_answer for _, is_answer in parts)):
            self._num_thought, self._num_undecided = self._num_thought + self._num_undecided + 1, 0
        elif is_token:
            self._num_undecided = self._num_undecided + 1 if self._thoughts.is_undecided else 0
        return self._stopped(parts)

    def _stopped(self, parts: Iterable[tuple[str, bool]]) -> str:
        """Return as much of some parts as precedes a stop string. Space between thought and answer is in neither."""
        found = ""
        for part, is_answer in parts:
            if not is_answer:
                self._is_behind_thought = True
            elif self._is_behind_thought:
                answer = part.lstrip()
                self._is_behind_thought = not answer
                if self._skips_thoughts:
                    found, part = found + part[: len(part) - len(answer)], answer
            if self.stop_string is not None or self.num_tokens <= self._min_tokens:
                found += part if self.stop_string is None else ""
            elif is_answer or not self._skips_thoughts:
                found += self._stops.push(part)
            else:
                found += self._stops.flush() + part
        return found
