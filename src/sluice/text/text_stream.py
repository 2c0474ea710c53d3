"""The text of one request: decodes its tokens, ends it at the first stop string, and counts the tokens.

The HTTP server, `LLM` and the command line all use it, so their texts are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sluice.text.detokenizer import Detokenizer
from sluice.types import CachedTokens, FinishReason, Output, TokenLogprobs


class StopFinder:
    """Ends a text that arrives in pieces before the first stop string.

    The first stop string is the one that is complete first, and of several that end together the longest. So the result
    does not depend on the pieces. Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add a piece, and return the text that certainly precedes any stop string."""
        if not self._stops or not text:
            return text
        text = self._held + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.found = True
            self._held = ""
            return text[: min(ends)[1]]
        end = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was held back, when the text ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class Piece(NamedTuple):
    """The text that one token adds. The last piece has a `finish_reason`, and no token id if it ended otherwise."""

    token_id: int | None
    text: str
    finish_reason: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    """None unless requested."""
    offset: int = 0
    """Characters of text before the token, including those of a stop string."""


class TextStream:
    """Turns the outputs of one request into pieces of text, one for each token.

    Args:
        detokenizer: continues the request's prompt.
        stop: strings that end the text.
        min_tokens: stop strings do not count in the text of this many first tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._stops = StopFinder(stop)
        self.num_tokens = 0
        """Tokens of the output, including the one that ended the text."""
        self.finish_reason: FinishReason | None = None
        self._length = 0
        self.cached = CachedTokens()
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        """None for the first token of the prompt; the others only if they were requested."""

    def push(self, output: Output) -> list[Piece]:
        """Return the pieces of one output, in order.

        Once a stop string is complete the text has ended with STOP: later outputs give no pieces, and the caller must
        abort the request. If an output ends with ERROR or ABORT, the caller must report it.
        """
        if self.finish_reason is None:
            self.add_prompt_facts(output)
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
        # A stop token ends the text and is not part of it.
        own = "" if reason is FinishReason.STOP else self._detokenizer.push(token)
        self._length += len(own)
        text = self._stops.push(own) if self.num_tokens > self._min_tokens else own
        if not self._stops.found and reason is not None:
            text += self._rest()
        self.finish_reason = FinishReason.STOP if self._stops.found else reason
        return Piece(token, text, self.finish_reason, logprobs, offset)

    def _rest(self) -> str:
        """Return the text that was held back: an unfinished character and the beginning of a stop string."""
        text = self._stops.push(self._detokenizer.flush())
        return text if self._stops.found else text + self._stops.flush()
