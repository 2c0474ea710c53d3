"""Options of speculation: tokens that are guessed ahead, and checked in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.config.base import option
from sluice.types import DraftLimits, NgramLimits

SEE = "See [speculation.md](speculation.md)."
NGRAM_DRAFTS = 15
"""Most guesses of a row by n-grams: how many there are follows what they bring."""


@dataclass(frozen=True)
class SpeculativeConfig:
    """What guesses tokens ahead, and how many."""

    speculative_algorithm: str | None = option(
        None,
        "what guesses the tokens that follow",
        unset="none: a token a step",
        more="Guesses are checked in one step, and those that are right are tokens for which no further step is needed."
        " The answers are the same as without. ngram: what followed the same tokens before, in the request itself or in"
        f" what its tenant was answered lately. {SEE}",
        choices=("ngram",),
        spellings={"NGRAM": "ngram", "suffix": "ngram"},
        sglang="--speculative-algorithm",
        metavar="WHAT",
    )
    speculative_num_steps: int | None = option(
        None,
        "maximum guesses of one request in a step",
        unset="15",
        more="How many there are follows how often they are right and what they cost, down to none."
        " Needs --speculative-algorithm.",
        sglang="--speculative-num-steps",
        vllm="--speculative-config.num_speculative_tokens",
        positive=True,
    )
    speculative_num_draft_tokens: int | None = option(
        None,
        "the same and 1, as SGLang counts",
        unset="--speculative-num-steps + 1",
        more="The tokens of a row that are checked in a step: the guesses, and the token before them.",
        sglang="--speculative-num-draft-tokens",
        positive=True,
    )
    speculative_ngram_min_match_window_size: int | None = option(
        None,
        "tokens that must be equal before a guess",
        unset="2, or the longest if that is less",
        more="Needs --speculative-algorithm ngram.",
        sglang="--speculative-ngram-min-match-window-size",
        vllm="--speculative-config.prompt_lookup_min",
        positive=True,
    )
    speculative_ngram_max_match_window_size: int | None = option(
        None,
        "tokens that are compared before a guess",
        unset="12, or the shortest if that is more",
        more="The place with most equal tokens is taken. Needs --speculative-algorithm ngram.",
        sglang="--speculative-ngram-max-match-window-size",
        vllm="--speculative-config.prompt_lookup_max",
        positive=True,
    )
    speculative_ngram_capacity: int | None = option(
        None,
        "tokens of recent answers to guess from",
        unset="131072",
        more="Of all tenants together; each is guessed for from its own alone. 0: guesses come from the request itself"
        " alone. `POST /flush_cache` forgets them. Needs --speculative-algorithm ngram.",
        sglang="--speculative-ngram-capacity",
    )

    def drafts(self) -> int:
        """Return the most guesses of a row; 0 without an algorithm. The options must be resolved."""
        if self.speculative_algorithm is None:
            return 0
        assert self.speculative_num_steps is not None, f"not resolved: {self}"
        return self.speculative_num_steps

    def limits(self) -> DraftLimits | None:
        """Return what guesses; None without an algorithm. The options must be resolved."""
        if self.speculative_algorithm is None:
            return None
        shortest, longest = self.speculative_ngram_min_match_window_size, self.speculative_ngram_max_match_window_size
        capacity = self.speculative_ngram_capacity
        if shortest is None or longest is None or capacity is None:  # of another algorithm
            return DraftLimits(self.speculative_algorithm)
        return DraftLimits(self.speculative_algorithm, NgramLimits(shortest, longest, capacity))


VLLM_FIELDS: Mapping[str, str] = {
    "method": "speculative_algorithm",
    "num_speculative_tokens": "speculative_num_steps",
    "prompt_lookup_min": "speculative_ngram_min_match_window_size",
    "prompt_lookup_max": "speculative_ngram_max_match_window_size",
}
"""Fields of vLLM's --speculative-config -> options."""
