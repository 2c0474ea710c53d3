"""What `LLM` and `AsyncLLM` return: the samples of a prompt, or its embedding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.types import TokenLogprobs


class GenerationError(RuntimeError):
    """The engine could not finish a request. The LLM stays usable."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation of a prompt."""

    token_ids: tuple[int, ...]
    """All generated tokens, including the one that ended it."""
    text: str
    """The text without a stop token or stop string; empty if the checkpoint has no tokenizer."""
    finish_reason: str
    """"stop" or "length", as in OpenAI's API."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `token_ids`; None unless requested."""


@dataclass(frozen=True, slots=True)
class Result:
    """The samples of one prompt. `token_ids`, `text`, `finish_reason` and `logprobs` are those of the first."""

    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int
    """Prompt tokens whose KV the first sample found in the cache; the other samples share it."""
    samples: tuple[Sample, ...]
    """`SamplingParams.n` of them."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One for each of `prompt_token_ids`, None for the first of them; None altogether unless requested."""
    num_host_tokens: int = 0
    """Cached tokens whose KV was loaded from the host."""
    num_disk_tokens: int = 0
    """Cached tokens whose KV was loaded from the disk."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.samples[0].token_ids

    @property
    def text(self) -> str:
        return self.samples[0].text

    @property
    def finish_reason(self) -> str:
        return self.samples[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None:
        return self.samples[0].logprobs


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The embedding of one prompt."""

    prompt_token_ids: tuple[int, ...]
    vector: npt.NDArray[np.float32]
    """[dimensions], of length 1: the inner product of two is the cosine of their angle."""
    num_cached_tokens: int
    """Prompt tokens whose KV was found in the cache."""
