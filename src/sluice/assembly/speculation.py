"""The options of speculation: what is refused, and the values of those that were left open."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sluice.config import (
    MODEL_DRAFTS,
    NGRAM_DRAFTS,
    RUNNER_ALGORITHMS,
    ConfigError,
    EngineConfig,
    SpeculativeConfig,
    flag,
)
from sluice.types import NgramLimits

MOST_DRAFTS = 128
LONGEST_MATCH = 64
LEAST_CAPACITY = 64


def refuse_speculation(config: SpeculativeConfig) -> None:
    """Check the options of speculation against each other.

    Raises:
        ConfigError: one that has no effect, or that no guess could satisfy.
    """
    if config.speculative_algorithm is None:
        for item in fields(config):
            if (value := getattr(config, item.name)) is not None:
                raise ConfigError(f"{flag(item.name)} {value} needs --speculative-algorithm")
    _refuse_numbers(config)
    _refuse_ngrams(config)
    _refuse_draft_model(config)


def refuse_drafting_ranks(config: EngineConfig) -> None:
    """Refuse a draft model or head beside several ranks, each of which has a part of the model.

    Raises:
        ConfigError: there are several.
    """
    algorithm, parallel = config.speculative.speculative_algorithm, config.parallel
    if algorithm in RUNNER_ALGORITHMS and parallel.tp_size * parallel.pp_size > 1:
        raise ConfigError(
            f"--speculative-algorithm {algorithm} needs one rank, got --tp-size {parallel.tp_size} and --pp-size"
            f" {parallel.pp_size}: leave these out, or take ngram"
        )


def _refuse_numbers(config: SpeculativeConfig) -> None:
    steps, tokens = config.speculative_num_steps, config.speculative_num_draft_tokens
    if tokens is not None and tokens < 2:
        raise ConfigError(
            f"--speculative-num-draft-tokens must be at least 2, a guess and the token before it, got {tokens}"
        )
    if steps is not None and tokens is not None and tokens != steps + 1:
        raise ConfigError(
            f"--speculative-num-steps {steps} and --speculative-num-draft-tokens {tokens} contradict each other: a row"
            f" holds its guesses and the token before them, {steps + 1}; give one of them"
        )
    most = steps or (tokens or 1) - 1
    if most > MOST_DRAFTS:
        name = "--speculative-num-steps" if steps else "--speculative-num-draft-tokens"
        raise ConfigError(
            f"{name} {steps or tokens} means {most} guesses of a row in a step; at most are {MOST_DRAFTS}"
        )


def _refuse_ngrams(config: SpeculativeConfig) -> None:
    least, most = config.speculative_ngram_min_match_window_size, config.speculative_ngram_max_match_window_size
    for name, value in (("min", least), ("max", most)):
        if value is not None and value > LONGEST_MATCH:
            raise ConfigError(
                f"--speculative-ngram-{name}-match-window-size must be at most {LONGEST_MATCH}, got {value}"
            )
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"--speculative-ngram-min-match-window-size {least} is more than"
            f" --speculative-ngram-max-match-window-size {most}"
        )
    capacity = config.speculative_ngram_capacity
    if capacity is not None and capacity != 0 and capacity < LEAST_CAPACITY:
        raise ConfigError(
            f"--speculative-ngram-capacity must be 0, for none, or at least {LEAST_CAPACITY} tokens, got {capacity}"
        )


def _refuse_draft_model(config: SpeculativeConfig) -> None:
    algorithm, path = config.speculative_algorithm, config.speculative_draft_model
    if algorithm in RUNNER_ALGORITHMS:
        if path is None:
            raise ConfigError(f"--speculative-algorithm {algorithm} needs --speculative-draft-model PATH")
        for item in fields(config):
            if item.name.startswith("speculative_ngram") and (value := getattr(config, item.name)) is not None:
                raise ConfigError(f"{flag(item.name)} {value} needs --speculative-algorithm ngram, got {algorithm!r}")
    elif path is not None and algorithm is not None:
        raise ConfigError(
            f"--speculative-draft-model {path} needs --speculative-algorithm {' or '.join(RUNNER_ALGORITHMS)},"
            f" got {algorithm!r}"
        )


def speculation_sizes(config: SpeculativeConfig, why: dict[str, str]) -> dict[str, Any]:
    """Return the sizes that were left open, with the reasons in `why`; none without an algorithm."""
    if config.speculative_algorithm is None:
        return {}
    filled: dict[str, int] = {}

    def fill(name: str, value: int, reason: str = "default") -> int:
        given: int | None = getattr(config, f"speculative_{name}")
        if given is not None:
            return given
        filled[f"speculative_{name}"], why[f"speculative_{name}"] = value, reason
        return value

    tokens = config.speculative_num_draft_tokens
    if tokens is None:
        steps = fill("num_steps", MODEL_DRAFTS if config.speculative_algorithm in RUNNER_ALGORITHMS else NGRAM_DRAFTS)
    else:
        steps = fill("num_steps", tokens - 1, "--speculative-num-draft-tokens - 1")
    fill("num_draft_tokens", steps + 1, "--speculative-num-steps + 1")
    if config.speculative_algorithm in RUNNER_ALGORITHMS:
        return filled
    ngram = NgramLimits()
    longest = config.speculative_ngram_max_match_window_size or ngram.longest
    shortest = fill("ngram_min_match_window_size", min(ngram.shortest, longest))
    fill("ngram_max_match_window_size", max(ngram.longest, shortest))
    fill("ngram_capacity", ngram.capacity)
    return filled
