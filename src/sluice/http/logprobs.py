"""Log-probabilities in the form of OpenAI's API, which has one for completions and another for chats.

OpenAI's API has none for prompts; these are in vLLM's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import TokenLogprobs

LEAST = -9999.0
"""OpenAI's number for a probability of zero. JSON has no infinity."""


class ScoredToken(NamedTuple):
    """A token of a completion's text, which may begin with the prompt."""

    token_id: int
    offset: int
    """Characters before it."""
    logprobs: TokenLogprobs | None
    """None for a prompt's first token."""


def scored_pieces(pieces: Iterable[Piece], offset: int = 0) -> list[ScoredToken]:
    """Return the tokens of an output that have log-probabilities; `offset` characters come before the output."""
    return [
        ScoredToken(piece.logprobs.token_id, offset + piece.offset, piece.logprobs)
        for piece in pieces
        if piece.logprobs is not None
    ]


def scored_prompt(
    tokenizer: Tokenizer, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> list[ScoredToken]:
    """Return the tokens of a prompt that comes before its completion."""
    scored, offset, detokenizer = [], 0, tokenizer.detokenizer()
    for token, item in zip(prompt, logprobs, strict=True):
        scored.append(ScoredToken(token, offset, item))
        offset += len(detokenizer.push(token))
    return scored


def completion_logprobs(tokenizer: Tokenizer, scored: Sequence[ScoredToken]) -> dict[str, Any] | None:
    """Return the `logprobs` of a completion's choice; None if no token has any.

    `top_logprobs` holds the most likely tokens and the token itself; `text_offset` is where a token begins in the
    choice's `text`.
    """
    if not scored:
        return None
    return {
        "tokens": [completion_token(tokenizer, item.token_id) for item in scored],
        "token_logprobs": [None if item.logprobs is None else finite(item.logprobs.logprob) for item in scored],
        "top_logprobs": [None if item.logprobs is None else _top(tokenizer, item.logprobs) for item in scored],
        "text_offset": [item.offset for item in scored],
    }


def chat_logprobs(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> dict[str, Any] | None:
    """Return the `logprobs` of a chat's choice; None if no token has any."""
    content = [
        _chat_token(tokenizer, piece.logprobs.token_id, piece.logprobs.logprob)
        | {"top_logprobs": [_chat_token(tokenizer, token, logprob) for token, logprob in piece.logprobs.top]}
        for piece in pieces
        if piece.logprobs is not None
    ]
    return {"content": content, "refusal": None} if content else None


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """Return for each token of a prompt the token itself and the most likely ones, by id; None for the first.

    The rank of a token that is not among the most likely is unknown, and None.
    """
    return [None if item is None else _by_id(tokenizer, item) for item in logprobs]


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
