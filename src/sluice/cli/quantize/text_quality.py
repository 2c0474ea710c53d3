"""How well a model predicts a text, and whether it would continue each of its beginnings as another does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from sluice.llm.llm import LLM
from sluice.types import SamplingParams

WINDOW = 2048
"""Most tokens that are read in one context."""
NO_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)


class TextQuality(NamedTuple):
    """What a model says of each token of a text but the first of each window, having read those before it."""

    logprobs: list[float]
    hits: list[bool]
    """Whether the token is the most likely one."""
    best: list[int]
    """The most likely token."""

    @property
    def perplexity(self) -> float:
        """The inverse of the geometric mean of the tokens' probabilities."""
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))

    @property
    def hit_share(self) -> float:
        """Share of the tokens that are the most likely ones."""
        return sum(self.hits) / len(self.hits)

    def agreement(self, other: TextQuality) -> float:
        """Return the share of places at which both find the same token most likely."""
        return sum(a == b for a, b in zip(self.best, other.best, strict=True)) / len(self.best)


def windows_of(token_ids: Sequence[int], context: int) -> list[Sequence[int]]:
    """Cut a text into windows that a context of so many tokens has room for, and a further token."""
    size = min(WINDOW, context - 1)
    cut = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    return [window for window in cut if len(window) > 1]


def read_text(model: str | Path, windows: Sequence[Sequence[int]], *, quantization: str, progress: bool) -> TextQuality:
    """Load a model in bfloat16 and let it read windows of a text, one after the other.

    Args:
        quantization: the value of `--quantization`.

    Raises:
        CheckpointError: the model cannot be loaded.
        ConfigError: this machine cannot compute it.
    """
    longest = max(map(len, windows))
    reading = TextQuality([], [], [])
    with (
        LLM(
            model,
            progress=progress,
            dtype="bfloat16",
            device="cpu",
            quantization=quantization,
            context_length=longest + 1,
            max_running_requests=1,
        ) as llm,
        tqdm(total=sum(map(len, windows)), desc=quantization, unit="tok", leave=False, disable=not progress) as bar,
    ):
        for window in windows:
            found = llm.generate([list(window)], NO_TOKEN)[0].prompt_logprobs
            assert found is not None, "prompt_logprobs were asked for"
            for token in found:
                if token is not None:
                    best = token.top[0][0]
                    reading.logprobs.append(token.logprob)
                    reading.hits.append(token.token_id == best)
                    reading.best.append(best)
            bar.update(len(window))
    return reading
