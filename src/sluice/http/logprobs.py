"""Log-probabilities in the words of OpenAI's API: completions have one spelling and chats another.

Those of the prompt, which OpenAI's API does not know, are spelled as vLLM spells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sluice.text.text_stream import Piece
from sluice.text.tokenizer import Tokenizer
from sluice.types import TokenLogprobs

LEAST = -9999.0
"""OpenAI's number for a probability of zero. JSON has no infinity."""


class Told(NamedTuple):
    """A token of a completion's text, in the prompt that it repeats or behind it."""

    token_id: int
    offset: int
    """Characters before it."""
    logprobs: TokenLogprobs | None
    """None for the first of all."""


def told_of_pieces(pieces: Iterable[Piece], offset: int = 0) -> list[Told]:
    """What there is to tell of an output that `offset` characters come before: nothing if nobody asked."""
    return [
        Told(piece.logprobs.token_id, offset + piece.offset, piece.logprobs)
        for piece in pieces
        if piece.logprobs is not None
    ]


def told_of_prompt(tokenizer: Tokenizer, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> list[Told]:
    """What there is to tell of a prompt that is repeated."""
    told, offset, stream = [], 0, tokenizer.detokenizer()
    for token, item in zip(prompt, logprobs, strict=True):
        told.append(Told(token, offset, item))
        offset += len(stream.push(token))
    return told


def completion_logprobs(tokenizer: Tokenizer, told: Sequence[Told]) -> dict[str, Any] | None:
    """The `logprobs` of a completion's choice; None if nobody asked.

    `top_logprobs` holds the most likely tokens and the token itself; `text_offset` is where a token begins in the
    choice's `text`.
    """
    if not told:
        return None
    return {
        "tokens": [completion_token(tokenizer, item.token_id) for item in told],
        "token_logprobs": [None if item.logprobs is None else finite(item.logprobs.logprob) for item in told],
        "top_logprobs": [None if item.logprobs is None else _top(tokenizer, item.logprobs) for item in told],
        "text_offset": [item.offset for item in told],
    }


def chat_logprobs(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> dict[str, Any] | None:
    """The `logprobs` of a chat's choice; None if nobody asked."""
    told = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    if not told:
        return None
    content = [
        _chat_token(tokenizer, item.token_id, item.logprob)
        | {"top_logprobs": [_chat_token(tokenizer, token, logprob) for token, logprob in item.top]}
        for item in told
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(tokenizer: Tokenizer, told: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """For each token of a prompt the token itself and the most likely ones by id; null for the first.

    The rank of a token that is none of the most likely is not known, and null.
    """
    return [None if item is None else _by_id(tokenizer, item) for item in told]


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
    """Where two tokens read alike the more likely one is shown."""
    top: dict[str, float] = {}
    for token, logprob in (*item.top, (item.token_id, item.logprob)):
        top.setdefault(completion_token(tokenizer, token), finite(logprob))
    return top


def completion_token(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as a text; one that is only a part of a character as its bytes, in OpenAI's notation."""
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
    """What JSON can say."""
    return max(logprob, LEAST)
