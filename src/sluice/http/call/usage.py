"""How many tokens a call took and where they were, as answers say it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from sluice.http.call import generation
from sluice.types import CachedTokens, Drafted


class CachedTokensDetails(msgspec.Struct):
    """Cached tokens by where they were."""

    device: int
    host: int
    disk: int


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int
    cached_tokens_details: CachedTokensDetails | UnsetType = UNSET
    """Given only if some were not on the device (SGLang)."""


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int
    """Tokens before the answer."""
    accepted_prediction_tokens: int | UnsetType = UNSET
    """Tokens that the server had guessed, with `--speculative-algorithm`."""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """Guesses that were wrong. They are no tokens of the answer."""


class Usage(msgspec.Struct):
    """Tokens of a call: each prompt once for any `n`; the outputs of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """Given only for chats with reasoning, and for answers with guessed tokens."""


def usage_json(usage: generation.Usage) -> Usage:
    """Return the tokens of a call in the form of OpenAI's API."""
    prompt, completion, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached.total, cached_details(cached)),
        completion_tokens_details=_completion_details(usage.reasoning_tokens, usage.drafted),
    )


def cached_details(cached: CachedTokens) -> CachedTokensDetails | UnsetType:
    """Return where cached tokens were; nothing if all of them were on the device."""
    if cached.device == cached.total:
        return UNSET
    return CachedTokensDetails(cached.device, cached.host, cached.disk)


def _completion_details(reasoning: int, drafted: Drafted) -> CompletionTokensDetails | UnsetType:
    if drafted.tokens:
        return CompletionTokensDetails(reasoning, drafted.accepted, drafted.tokens - drafted.accepted)
    return CompletionTokensDetails(reasoning) if reasoning else UNSET
