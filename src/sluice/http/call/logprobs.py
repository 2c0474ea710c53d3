"""Log-probabilities in the form of OpenAI's API, which has one for completions and another for chats.

OpenAI's API has none for prompts; these are in vLLM's form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from sluice.http.base.turns import json_list
from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import TokenLogprobs

LEAST = -9999.0
"""OpenAI's number for a probability of zero. JSON has no infinity."""


class CompletionLogprobs(msgspec.Struct):
    """Lists with an item for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens and the token itself, by text."""
    text_offset: list[int]
    """Where the token begins in `text`, in characters."""


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]
    refusal: None


class PromptToken(msgspec.Struct):
    """A token at a place of the prompt (vLLM)."""

    logprob: float
    rank: int | None
    """None: it is not among the most likely, and its rank is unknown."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""One entry for each token of the prompt: it and the most likely tokens, by id; null for the first token."""


class ScoredToken(NamedTuple):
    """A token of a completion's text, which may begin with the prompt."""

    token_id: int
    logprobs: TokenLogprobs | None
    """None for a prompt's first token."""


def scored_pieces(pieces: Iterable[Piece]) -> list[ScoredToken]:
    """Return the tokens of an output that have log-probabilities."""
    return [ScoredToken(piece.logprobs.token_id, piece.logprobs) for piece in pieces if piece.logprobs is not None]


def offsets_of(pieces: Iterable[Piece], before: int = 0) -> Iterator[int]:
    """Yield the characters before each token of `scored_pieces`; `before` come before the output."""
    return (before + piece.offset for piece in pieces if piece.logprobs is not None)


def prompt_offsets(
    tokenizer: Tokenizer, prompt: Sequence[int], num_added: int, *, skip_special_tokens: bool
) -> Iterator[int]:
    """Yield where each token of a prompt begins in the prompt's text, in characters.

    Args:
        num_added: special tokens that the tokenizer put before the text, which lacks them.
        skip_special_tokens: the text lacks all others, too.
    """
    yield from itertools.repeat(0, num_added)
    offset, detokenizer = 0, tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    for token in prompt[num_added:]:
        yield offset
        offset += len(detokenizer.push(token))


def completion_logprobs(
    tokenizer: Tokenizer, scored: Sequence[ScoredToken], offsets: Iterable[int]
) -> CompletionLogprobs | None:
    """Return the `logprobs` of a completion's choice; None if no token has any.

    Args:
        offsets: of the tokens, in characters.
    """
    if not scored:
        return None
    items, count = [item.logprobs for item in scored], len(scored)
    return CompletionLogprobs(
        json_list((completion_token(tokenizer, item.token_id) for item in scored), count),
        json_list((None if item is None else finite(item.logprob) for item in items), count),
        json_list((None if item is None else _top(tokenizer, item) for item in items), count),
        json_list(offsets, count),
    )


def chat_logprobs(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> ChatLogprobs | None:
    """Return the `logprobs` of a chat's choice; None if no token has any."""
    items = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    if not items:
        return None
    return ChatLogprobs(json_list((_chat_token(tokenizer, item) for item in items), len(items)), None)


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """Return for each token of a prompt the token itself and the most likely ones, by id; None for the first.

    The rank of a token that is not among the most likely is unknown, and None.
    """
    return json_list((None if item is None else _by_id(tokenizer, item) for item in logprobs), len(logprobs))


def _by_id(tokenizer: Tokenizer, item: TokenLogprobs) -> dict[str, PromptToken]:
    ranked: list[tuple[int, float, int | None]]
    ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(item.top, start=1)]
    if item.token_id not in {token for token, _, _ in ranked}:
        ranked.insert(0, (item.token_id, item.logprob, None))
    return {
        str(token): PromptToken(finite(logprob), rank, _readable(tokenizer, token)) for token, logprob, rank in ranked
    }


def _top(tokenizer: Tokenizer, item: TokenLogprobs) -> dict[str, float]:
    """Return log-probabilities by text; of two tokens with the same text the more likely one is shown."""
    top: dict[str, float] = {}
    for token, logprob in (*item.top, (item.token_id, item.logprob)):
        top.setdefault(completion_token(tokenizer, token), finite(logprob))
    return top


def completion_token(tokenizer: Tokenizer, token_id: int) -> str:
    """Return a token's text; of one that is only a part of a character its bytes, in OpenAI's notation."""
    spelled = tokenizer.spelled(token_id)
    try:
        return _readable(tokenizer, token_id) if spelled is None else spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled or b"")


def _chat_token(tokenizer: Tokenizer, item: TokenLogprobs) -> ChatToken:
    top = [TopLogprob(*_spelled(tokenizer, token, logprob)) for token, logprob in item.top]
    return ChatToken(*_spelled(tokenizer, item.token_id, item.logprob), top)


def _spelled(tokenizer: Tokenizer, token_id: int, logprob: float) -> tuple[str, float, list[int] | None]:
    spelled = tokenizer.spelled(token_id)
    return _readable(tokenizer, token_id), finite(logprob), None if spelled is None else list(spelled)


def _readable(tokenizer: Tokenizer, token_id: int) -> str:
    spelled = tokenizer.spelled(token_id)
    return f"token_id:{token_id}" if spelled is None else spelled.decode(errors="replace")


def shares(logprobs: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Return the probabilities of some tokens among themselves; 0 each if none of them can come.

    Args:
        temperature: divides the log-probabilities.
    """
    largest = max(logprobs)
    if largest == -math.inf:
        return [0.0] * len(logprobs)
    weights = [math.exp((each - largest) / temperature) for each in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


def finite(logprob: float) -> float:
    """Return a number that JSON can hold."""
    return max(logprob, LEAST)
