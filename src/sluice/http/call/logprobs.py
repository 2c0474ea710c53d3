"""Log-probabilities in the form of OpenAI's API, which has one for completions and another for chats.

OpenAI's API has none for prompts; these are in vLLM's form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sluice.http.base.turns import JsonList, json_list
from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import TokenLogprobs

LEAST = -9999.0
"""OpenAI's number for a probability of zero. JSON has no infinity."""


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
) -> dict[str, Any] | None:
    """Return the `logprobs` of a completion's choice; None if no token has any.

    `top_logprobs` holds the most likely tokens and the token itself; `text_offset` is where a token begins in the
    choice's `text`.

    Args:
        offsets: of the tokens, in characters.
    """
    if not scored:
        return None
    items = [item.logprobs for item in scored]
    fields = {
        "tokens": (completion_token(tokenizer, item.token_id) for item in scored),
        "token_logprobs": (None if item is None else finite(item.logprob) for item in items),
        "top_logprobs": (None if item is None else _top(tokenizer, item) for item in items),
        "text_offset": offsets,
    }
    return {name: json_list(values, len(scored)) for name, values in fields.items()}


def chat_logprobs(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> dict[str, Any] | None:
    """Return the `logprobs` of a chat's choice; None if no token has any."""
    items = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    if not items:
        return None
    content = (
        _chat_token(tokenizer, item.token_id, item.logprob)
        | {"top_logprobs": [_chat_token(tokenizer, token, logprob) for token, logprob in item.top]}
        for item in items
    )
    return {"content": json_list(content, len(items)), "refusal": None}


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None]) -> list[Any] | JsonList:
    """Return for each token of a prompt the token itself and the most likely ones, by id; None for the first.

    The rank of a token that is not among the most likely is unknown, and None.
    """
    return json_list((None if item is None else _by_id(tokenizer, item) for item in logprobs), len(logprobs))


def _by_id(tokenizer: Tokenizer, item: TokenLogprobs) -> dict[str, Any]:
    ranked: list[tuple[int, float, int | None]]
    ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(item.top, start=1)]
    if item.token_id not in {token for token, _, _ in ranked}:
        ranked.insert(0, (item.token_id, item.logprob, None))
    return {
        str(token): {"logprob": finite(logprob), "rank": rank, "decoded_token": _readable(tokenizer, token)}
        for token, logprob, rank in ranked
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


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    spelled = tokenizer.spelled(token_id)
    return {
        "token": _readable(tokenizer, token_id),
        "logprob": finite(logprob),
        "bytes": None if spelled is None else list(spelled),
    }


def _readable(tokenizer: Tokenizer, token_id: int) -> str:
    spelled = tokenizer.spelled(token_id)
    return f"token_id:{token_id}" if spelled is None else spelled.decode(errors="replace")


def finite(logprob: float) -> float:
    """Return a number that JSON can hold."""
    return max(logprob, LEAST)
