"""Options of speculation: tokens that are guessed ahead, and checked in one step."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.config.base import option
from sluice.types import DraftLimits, NgramLimits

SEE = "See [speculation.md](speculation.md)."
RUNNER_ALGORITHMS = ("draft-model", "eagle3")
"""Algorithms whose guesses a model makes, in the runner."""
MODEL_DRAFTS = 5
"""Most guesses of a row by a draft model or head, each of which takes a forward of its own."""
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
        " what its tenant was answered lately. draft-model: a smaller model of the same tokenizer. eagle3: a head on"
        f" the model's hidden states. {SEE}",
        choices=("ngram", "draft-model", "eagle3"),
        spellings={
            "NGRAM": "ngram",
            "suffix": "ngram",
            "STANDALONE": "draft-model",
            "draft_model": "draft-model",
            "EAGLE3": "eagle3",
        },
        sglang="--speculative-algorithm",
        vllm="--speculative-config.method",
        metavar="WHAT",
    )
    speculative_draft_model: str | None = option(
        None,
        "checkpoint of the draft model or EAGLE-3 head",
        unset="none",
        more="A folder or a hub id. A draft model has the vocabulary of the model and at least its context; a head was"
        " trained for the model. Its KV is counted in the size of the pool. Needs --speculative-algorithm"
        " draft-model or eagle3.",
        aliases=("speculative_draft_model_path",),
        sglang="--speculative-draft-model-path",
        vllm="--speculative-config.model",
        metavar="PATH",
    )
    speculative_num_steps: int | None = option(
        None,
        "maximum guesses of one request in a step",
        unset="15 for ngram, 5 for a draft model or head",
        more="How many there are follows how often they are right and what they cost, down to none."
        " Needs --speculative-algorithm.",
        sglang="--speculative-num-steps",
        vllm="--speculative-config.num_speculative_tokens",
        positive=True,
    )
    speculative_num_draft_tokens: int | None = option(
        None,
        "maximum guesses in a step, plus 1",
        unset="--speculative-num-steps + 1",
        more="As SGLang counts: tokens of a row that are checked in a step, the guesses and the token before them.",
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

    @property
    def keeps_answers(self) -> bool:
        """Whether answers are kept to guess from."""
        return self.speculative_algorithm == "ngram" and self.speculative_ngram_capacity != 0

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
