"""What one request may ask of a loaded model: the check made at the edge, by the server and by `LLM` alike.

Nothing is truncated: a request that cannot be honoured whole is refused with the numbers that decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LimitError(ValueError):
    """A request that the loaded model or its KV pool cannot honour.

    `param` is the field at fault in the HTTP API's words ("prompt" or "max_tokens"); `code` is OpenAI's where one
    exists.
    """

    def __init__(self, message: str, *, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of a loaded engine that bound a request.

    `max_model_len` is the model's longest context, `max_total_tokens` the size of the KV pool, both in tokens.
    """

    vocab_size: int
    max_model_len: int
    max_total_tokens: int

    @property
    def max_request_tokens(self) -> int:
        """Most tokens of one request, prompt and output together."""
        return min(self.max_model_len, self.max_total_tokens)

    def check(self, prompt: Sequence[int], max_tokens: int | None) -> int:
        """Refuse what cannot be honoured.

        Args:
            prompt: token ids.
            max_tokens: output tokens asked for; None means as many as fit.

        Returns:
            The number of output tokens that fit behind the prompt, at least 1: `room` for `SamplingParams.resolved`.

        Raises:
            LimitError: an empty prompt, an id outside the vocabulary, or prompt + max_tokens over a limit.
        """
        self._check_ids(prompt)
        length = len(prompt)
        room = self.max_request_tokens - length
        if room < 1:
            raise self._too_long(f"the prompt has {length} tokens and needs room for at least 1 more", "prompt")
        if max_tokens is not None and max_tokens > room:
            raise self._too_long(
                f"prompt of {length} tokens + max_tokens {max_tokens} = {length + max_tokens} tokens",
                "max_tokens",
            )
        return room

    def _check_ids(self, prompt: Sequence[int]) -> None:
        if not prompt:
            raise LimitError("the prompt is empty; it needs at least one token", param="prompt")
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < self.vocab_size:
                raise LimitError(
                    f"token id {token} in the prompt is outside the vocabulary: ids are 0 to {self.vocab_size - 1}",
                    param="prompt",
                )

    def _too_long(self, what: str, param: str) -> LimitError:
        if self.max_model_len <= self.max_total_tokens:
            limit = f"the model's context is {self.max_model_len} tokens"
        else:
            limit = f"the KV pool is {self.max_total_tokens} tokens (--max-total-tokens)"
        return LimitError(f"{what}, but {limit}", param=param, code="context_length_exceeded")
