"""The text of one generation: detokenized as it comes, cut at the first stop string, counted.

Used wherever text is shown: by the HTTP server, `LLM` and the command line, so that they agree to the letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sluice.text.detokenizer import Detokenizer
from sluice.types import FinishReason, Output, TokenLogprobs


class StopFinder:
    """Cuts a text that comes in pieces at the first stop string.

    First is the one that is complete first (of several that end together, the longest), so the result does not depend
    on how the text was cut into pieces. Text that may turn out to be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is now certain to come before any stop string."""
        if not self._stops or not text:
            return text
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)[1]]
        keep = max(_longest_beginning(stop, text) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The end without a stop string: what was held back is text after all."""
        held, self._held = self._held, ""
        return held


def _longest_beginning(stop: str, text: str) -> int:
    """The length of the longest end of `text` that begins `stop` without being all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class Piece(NamedTuple):
    """What one token added. The one with a `finish_reason` is the last; it has no token id if no token ended it."""

    token_id: int | None
    text: str
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    """If asked for."""
    offset: int = 0
    """Where the token begins: characters of text before it, those of a stop string counted."""


class TextStream:
    """Folds the outputs of one request into pieces of text, one per token.

    Args:
        detokenizer: of this request.
        stop: strings that end the text.
        min_tokens: stop strings are looked for behind the text of so many tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._stops = StopFinder(stop)
        self.num_tokens = 0
        """Tokens generated, up to and including the one that ended the text."""
        self.finish_reason: FinishReason | None = None
        self._length = 0

    def push(self, output: Output) -> Iterator[Piece]:
        """The pieces of one output, in order.

        Once a stop string is complete the text is finished with STOP, whatever the engine still sends; the caller then
        owes the engine an abort. An output that ends with ERROR or ABORT is the caller's to report.
        """
        last = len(output.token_ids) - 1
        for index, token in enumerate(output.token_ids):
            if self.finish_reason is not None:
                return
            logprobs = output.logprobs[index] if output.logprobs else None
            yield self._token(token, output.finish_reason if index == last else None, logprobs)
        if self.finish_reason is None and output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            yield Piece(None, self._rest(), output.finish_reason)

    def end(self, reason: FinishReason) -> Piece:
        """Finish without a token."""
        self.finish_reason = reason
        return Piece(None, "", reason)

    def _token(self, token: int, reason: FinishReason | None, logprobs: TokenLogprobs | None) -> Piece:
        self.num_tokens += 1
        offset = self._length
        # A stop token ends the text and is no part of it.
        own = "" if reason is FinishReason.STOP else self._detokenizer.push(token)
        self._length += len(own)
        text = self._stops.push(own) if self.num_tokens > self._min_tokens else own
        if not self._stops.found and reason is not None:
            text += self._rest()
        self.finish_reason = FinishReason.STOP if self._stops.found else reason
        return Piece(token, text, self.finish_reason, logprobs, offset)

    def _rest(self) -> str:
        """What the end releases: an unfinished character, then what only looked like a stop string."""
        text = self._stops.push(self._detokenizer.flush())
        return text if self._stops.found else text + self._stops.flush()
