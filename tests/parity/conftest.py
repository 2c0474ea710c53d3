"""Checkpoints of every family, and what transformers says must come out; each made once a session."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import tiny_models
from expectations import MAX_TOKENS, PROMPT_LENGTHS, Checkpoints, Expected, Prompt


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """The folder of a family's tiny model."""

    @functools.cache
    def folder(family: str) -> Path:
        return tiny_models.save(family, tmp_path_factory.mktemp(family))

    return folder


@pytest.fixture(scope="session")
def expected(checkpoint: Checkpoints) -> Expected:
    """What `generate` of transformers continues a prompt with, in float64."""

    @functools.cache
    def reference(family: str) -> torch.nn.Module:
        return tiny_models.load_reference(checkpoint(family), torch.float64)

    @functools.cache
    def tokens(family: str, prompt: Prompt) -> list[int]:
        return tiny_models.generate(reference(family), prompt, MAX_TOKENS)

    return tokens


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Of several lengths, and one more that begins like the first."""
    first, *rest = (tiny_models.prompt(length, seed) for seed, length in enumerate(PROMPT_LENGTHS))
    return [first, *rest, first[:40] + rest[0]]
