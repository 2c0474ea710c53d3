"""The shadow model, whose next token is a hash of all tokens before it, and an oracle that computes its answers."""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile

from sluice.testing.grammars import forced_tokens, is_complete
from sluice.types import SamplingParams, TokenLogprobs

SHADOW_EMBEDDING_SIZE = 4


def shadow_token(tokens: Sequence[int], seed: int, sample_index: int, vocab_size: int) -> int:
    """Return the shadow model's next token after `tokens`."""
    return zlib.crc32(array("q", tokens).tobytes(), (seed * 31 + sample_index) & 0xFFFFFFFF) % vocab_size


def shadow_embedding(tokens: Sequence[int]) -> bytes:
    """Return the shadow model's embedding of a prompt: `SHADOW_EMBEDDING_SIZE` numbers that hash all of its tokens."""
    digest = zlib.crc32(array("q", tokens).tobytes()).to_bytes(SHADOW_EMBEDDING_SIZE, "little")
    return struct.pack(f"<{SHADOW_EMBEDDING_SIZE}f", *(1 + byte for byte in digest))


def oracle(
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    sample_index: int = 0,
    vocab_size: int,
    grammar: str = "",
) -> tuple[int, ...]:
    """Return the output that a request must have over the shadow model, under every schedule.

    Args:
        prompt: token ids.
        sampling: resolved parameters, as `resolved` makes them.
        sample_index: the number of the sample of its prompt.
        vocab_size: as the runner's.
        grammar: of the request, made by `shadow_grammar`.

    >>> oracle((5, 6, 7), resolved(max_tokens=3), vocab_size=256)
    (165, 224, 159)
    """
    assert sampling.max_tokens is not None and sampling.seed is not None, sampling
    tokens = list(prompt)
    end = len(prompt) + sampling.max_tokens
    while len(tokens) < end:
        brought = sampled_and_forced(tokens, sampling, sample_index, vocab_size, grammar)
        stops = (count for count, token in enumerate(brought, start=1) if token in sampling.stop_token_ids)
        stop = next(stops, None)
        tokens += brought[:stop]
        if stop is not None or (grammar and is_complete(grammar, tokens)):
            break
    return tuple(tokens[len(prompt) : end])


def sampled_and_forced(
    tokens: Sequence[int], sampling: SamplingParams, sample_index: int, vocab_size: int, grammar: str
) -> tuple[int, ...]:
    """Return the shadow model's next token, and those that a grammar forces behind it. None are forced where
    log-probabilities are asked for."""
    assert sampling.seed is not None, sampling
    token = shadow_token(tokens, sampling.seed, sample_index, vocab_size)
    if not grammar or sampling.logprobs is not None:
        return (token,)
    return (token, *forced_tokens(grammar, (*tokens, token), vocab_size))


def verified(
    tokens: Sequence[int],
    drafts: Sequence[int],
    sampling: SamplingParams,
    sample_index: int,
    vocab_size: int,
    grammar: str,
    mask_is_late: Callable[[], bool] = lambda: False,
) -> tuple[tuple[int, ...], int]:
    """Return what the row of a chunk with drafts brings, and how many of them are accepted.

    Args:
        tokens: all that are known.
        drafts: guesses of what follows them.
        mask_is_late: asked before each token that is sampled under a grammar: whether there is none.
    """
    known, equal = list(tokens), 0
    brought: list[int] = []
    while equal == len(brought) and not (grammar and (mask_is_late() or (brought and is_complete(grammar, known)))):
        group = sampled_and_forced(known, sampling, sample_index, vocab_size, grammar)
        known += group
        brought += group
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, brought, strict=False)))
    return tuple(brought), min(equal, max(0, len(brought) - 1))


def digests(tokens: Iterable[int]) -> Iterator[int]:
    """Yield a hash of the tokens up to and including each token."""
    digest = 0
    for token in tokens:
        digest = zlib.crc32(token.to_bytes(8, "little"), digest)
        yield digest


def shadow_logits(digest: int, vocab_size: int) -> list[float]:
    """Return the shadow model's logits after tokens of this digest.

    The largest is that of the token that `shadow_token` returns for seed 0 and sample 0. Up to a vocabulary of 1009 no
    two are equal.
    """
    logits = [(digest + token * 619) % 1009 / 64 for token in range(vocab_size)]
    logits[digest % vocab_size] += 20
    return logits


def shadow_logprobs(digest: int, token: int, count: int, vocab_size: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """Return the log-probabilities of `token` after tokens of this digest, with `count` others or the named ones."""
    logprobs, order = _ranked(digest, vocab_size)
    return TokenLogprobs(token, logprobs[token], tuple((other, logprobs[other]) for other in named or order[:count]))


@lru_cache(1 << 12)
def _ranked(digest: int, vocab_size: int) -> tuple[list[float], list[int]]:
    """Return the log-probability of every token, and all tokens, the most likely ones first."""
    logits = shadow_logits(digest, vocab_size)
    total = math.log(sum(map(math.exp, logits)))
    return [logit - total for logit in logits], sorted(range(vocab_size), key=lambda token: -logits[token])


def oracle_logprobs(
    prompt: Sequence[int], outputs: Sequence[int], count: int, *, vocab_size: int
) -> tuple[tuple[TokenLogprobs, ...], tuple[TokenLogprobs, ...]]:
    """Return the log-probabilities of the prompt from its second token on, and of the output."""
    tokens = [*prompt, *outputs]
    found = tuple(
        shadow_logprobs(digest, token, count, vocab_size)
        for digest, token in zip(digests(tokens), tokens[1:], strict=False)
    )
    return found[: len(prompt) - 1], found[len(prompt) - 1 :]


def resolved(max_tokens: int = 8, *, seed: int = 0, stop_token_ids: Iterable[int] = ()) -> SamplingParams:
    """Return sampling parameters as the engine gets them."""
    return SamplingParams(max_tokens=max_tokens, seed=seed, stop_token_ids=tuple(stop_token_ids))
